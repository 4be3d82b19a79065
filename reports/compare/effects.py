"""Values of two arms → signed losses: above zero always means that the candidate is worse. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from reports.compare.metric_table import MetricRule

Floats = npt.NDArray[np.float64]


def is_number(value: float | None) -> bool:
    """Whether there is a value that can be compared: NaN and infinity are none."""
    return value is not None and math.isfinite(value)


def signed(rule: MetricRule, values: Sequence[float]) -> Floats:
    """Values [n] on the scale of losses: +-ln(value), or +-value for differences."""
    array = np.asarray(values, dtype=np.float64)
    return rule.worse_sign * (np.log(array) if rule.scale == "ratio" else array)


def why_no_ratio(rule: MetricRule, baseline: Sequence[float], candidate: Sequence[float]) -> str | None:
    """Why values have no logarithm; None when all have one, or when the metric is compared by difference."""
    if rule.scale == "difference":
        return None
    if any(value < 0 for value in (*baseline, *candidate)):
        return "a negative value has no ratio"
    if not any(baseline) and not any(candidate):
        return "both arms are zero: nothing was measured"
    if not all(baseline):
        return "the baseline is zero: the change is undefined"
    zeros = sum(value == 0 for value in candidate)
    return f"the candidate is zero in {zeros} of {len(candidate)} launches" if zeros else None


def is_total_loss(rule: MetricRule, baseline: Sequence[float], candidate: Sequence[float]) -> bool:
    """Every launch of the candidate, two at least, lost all of a metric of which more is better."""
    gone = not any(candidate) and all(value > 0 for value in baseline)
    return rule.better == "up" and len(candidate) >= 2 and gone


def center(rule: MetricRule, values: Sequence[float]) -> float | None:
    """What is shown for an arm: the geometric mean; the plain one for differences, and where a value is 0."""
    if not values:
        return None
    array = np.asarray(values, dtype=np.float64)
    if rule.scale == "ratio" and (array > 0).all():
        return float(np.exp(np.log(array).mean()))
    return float(array.mean())


def change_percent(baseline: float | None, candidate: float | None) -> float | None:
    """100 * (candidate / baseline - 1); 0 for 0 → 0, None (undefined) for 0 → anything else."""
    if baseline is None or candidate is None:
        return None
    if baseline == 0:
        return 0.0 if candidate == 0 else None
    return 100.0 * (candidate / baseline - 1.0)


def as_percent(rule: MetricRule, loss: float | None) -> float | None:
    """A loss as a reader wants it: % of the baseline, or 100 times the difference (points of a fraction)."""
    if loss is None or not math.isfinite(loss):
        return None
    return 100.0 * (math.expm1(loss) if rule.scale == "ratio" else loss)


def margin_of(rule: MetricRule, margin: float | None = None) -> float:
    """The margin on the scale of losses: ln(1 + margin), or the margin itself for differences."""
    value = rule.margin if margin is None else margin
    return math.log1p(value) if rule.scale == "ratio" else value


def absolute_of(rule: MetricRule, baseline: float | None) -> float:
    """The absolute floor as a loss from this baseline, on the scale of losses."""
    if not rule.absolute or baseline is None:
        return 0.0
    if rule.scale == "difference":
        return rule.absolute
    if baseline <= 0:
        return math.inf
    if rule.better == "down":
        return math.log1p(rule.absolute / baseline)
    return -math.log1p(-rule.absolute / baseline) if rule.absolute < baseline else math.inf
