"""Estimate, margin and noise floor → verdict of one cell and metric. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reports.compare.estimate import Estimate
from reports.compare.words import Verdict

COMPANION_ALPHA = 0.05  # of the sign-flip test, whatever the number of looks
COMPANION_FROM = 6  # pairs; below, 2^-n leaves the sign-flip test too little to say
UNDERPOWERED = 1.5  # detectable effect by effective margin


@dataclass(frozen=True, kw_only=True)
class Decision:
    verdict: Verdict
    reason: str | None = None


def decide(
    estimate: Estimate, *, margin: float, floor: float | None, why_no_floor: str, fewest: int
) -> Decision:
    """The rule. `margin` is the effective one, on the scale of losses; `floor` None: no A/A run may be used.

    FAIL: the loss is above zero and its mean above the margin. PASS: the loss is below the margin, shown
    on pairs that ran in both orders, against a known noise floor, by a test that could have seen a loss.
    """
    if estimate.n < fewest:
        return _open(f"{estimate.n} of at least {fewest} {_units(estimate)}")
    if estimate.interleaved and not estimate.both_orders:
        return _open("one arm ran first in every pair: order and arm cannot be told apart")
    if estimate.lo > 0 and estimate.mean > margin:
        if _signs_disagree(estimate, estimate.sign_flip_worse):
            return _open(f"heavy_tail: sign-flip p {estimate.sign_flip_worse:.3f} does not support the loss")
        return Decision(verdict=Verdict.FAIL, reason=None)
    if estimate.hi < margin:
        return _passing(estimate, margin, floor, why_no_floor)
    return _open("the interval reaches the margin" if estimate.mean <= margin else "the loss may be noise")


def _passing(estimate: Estimate, margin: float, floor: float | None, why_no_floor: str) -> Decision:
    """What else a loss below the margin needs to be called a PASS."""
    if not estimate.interleaved:
        return _open("not interleaved: what changed between the runs may be the machine")
    if floor is None:
        return _open(f"no noise floor: {why_no_floor}")
    if estimate.detectable > UNDERPOWERED * margin:
        return _open(f"underpowered: the test sees {estimate.detectable / margin:.1f} times the margin")
    if _signs_disagree(estimate, estimate.sign_flip_within(margin)):
        return _open("heavy_tail: sign flips do not support that the loss is below the margin")
    better = estimate.hi < 0 and estimate.mean < -margin
    if better and not _signs_disagree(estimate, estimate.sign_flip_within(0.0)):
        return Decision(verdict=Verdict.IMPROVED)
    return Decision(verdict=Verdict.PASS)


def _signs_disagree(estimate: Estimate, p: float | None) -> bool:
    return estimate.n >= COMPANION_FROM and p is not None and p > COMPANION_ALPHA


def _units(estimate: Estimate) -> str:
    return "pairs" if estimate.interleaved else "launches per arm"


def _open(reason: str) -> Decision:
    return Decision(verdict=Verdict.INCONCLUSIVE, reason=reason)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p values: an alarm in any of them is false with no more than the chance it claims."""
    from statsmodels.stats.multitest import multipletests  # heavy; only where arms are compared

    return [float(p) for p in multipletests(p_values, method="holm")[1]] if p_values else []
