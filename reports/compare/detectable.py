"""The smallest slow-down that a tier finds on a machine whose noise an A/A run has shown. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from harness.tier import Tier
from reports.compare.effects import as_percent, margin_of
from reports.compare.estimate import BORROW_BELOW, MOST_BORROWED_DF
from reports.compare.floor import Noise
from reports.compare.metric_table import METRICS, MetricRule
from reports.compare.power import POWER, detectable_per_sd, t_quantile

SHOWN = ("out_tps", "tpot_pooled_ms", "cpu_s_per_token")  # by wall time, and by CPU time


@dataclass(frozen=True, kw_only=True)
class Detectable:
    """`loss_pct`: slow-down that is a FAIL in 80 % of the cases with `pairs` pairs at `alpha`, one-sided."""

    metric: str
    pairs: int
    alpha: float
    loss_pct: float


def detectable(rule: MetricRule, noise: Noise, tier: Tier) -> Detectable:
    """With all pairs of the tier, by the rule of the gate: lo > 0 and a mean above the effective margin.

    The spread is that of the A/A pairs, the degrees of freedom are those of a comparison that borrows it.
    Without Holm's adjustment, which a single bad cell among many has to pass, and without absolute floors.
    """
    pairs = tier.pairs.max
    borrowed = min(noise.df, MOST_BORROWED_DF) if pairs < BORROW_BELOW else 0
    df = max(1, pairs - 1 + borrowed)
    significant = noise.sd * detectable_per_sd(pairs, df, tier.alpha)
    margin = max(margin_of(rule, tier.margins.get(rule.name)), noise.floor(pairs))
    relevant = margin + t_quantile(1 - POWER, math.inf) * noise.sd / math.sqrt(pairs)
    loss = as_percent(rule, max(significant, relevant))
    assert loss is not None
    return Detectable(metric=rule.name, pairs=pairs, alpha=tier.alpha, loss_pct=loss)


def in_words(name: str, tier: Tier, noises: Mapping[str, Noise]) -> str | None:
    """One sentence about a cell. `noises` by metric; None where none of `SHOWN` was measured."""
    found = [detectable(METRICS[metric], noises[metric], tier) for metric in SHOWN if metric in noises]
    if not found:
        return None
    sizes = ", ".join(f"{one.loss_pct:.1f} % by {one.metric}" for one in found)
    return (
        f"{name}: at tier {tier.name} ({tier.pairs.max} pairs, alpha {tier.alpha:.3g}) a slow-down is found"
        f" in {POWER:.0%} of the cases from {sizes}"
    )
