"""Whether the candidate gives the answers of the baseline to the same prompts. Pure.

Judged against what the baseline differs from itself. Across paths and dtypes equal tokens are not expected:
sums are rounded in another order: there the best token must agree where it leads clearly, and the distance of
the distributions must stay near that of rounding.
"""

from __future__ import annotations

import dataclasses
import math

from harness.equivalence.score import NOT_NUMBERS, Equivalence, Level
from harness.intervals import wilson
from harness.tier import ALPHA
from reports.compare.finding import Finding
from reports.compare.metric_table import METRICS
from reports.compare.power import t_quantile
from reports.compare.words import Verdict

ROUNDS_ALIKE = ("mtp",)  # differences that leave every rounding where it was


def compare_equivalence(context: Finding, arm: Equivalence, itself: Equivalence | None) -> list[Finding]:
    """Findings per concurrency. `itself`: the baseline's second pass against its first."""
    whole = dataclasses.replace(context, gate="equivalence")
    if not arm.levels:
        return [
            dataclasses.replace(whole, verdict=Verdict.MISSING, reason=f"no answers to compare: {arm.reason}")
        ]
    own = {level.concurrency: level for level in (itself.levels if itself else [])}
    alike = all(key in ROUNDS_ALIKE for key in arm.differs_in)
    found: list[Finding] = []
    for level in arm.levels:
        named = dataclasses.replace(whole, cell=f"{whole.cell}: answers at c{level.concurrency}")
        found += _level(named, level, own.get(level.concurrency), alike=alike)
    return found


def _level(named: Finding, level: Level, own: Level | None, *, alike: bool) -> list[Finding]:
    broken = _broken(level)
    if broken is not None:
        rule = METRICS["identical_answers"]
        return [dataclasses.replace(named, rule=rule, verdict=Verdict.FAIL, reason=broken)]
    found = [_identical(named, level, own, gated=named.gated and alike)]
    if level.forced is None:
        rule = METRICS["clear_agreement"]
        missing = dataclasses.replace(named, rule=rule, verdict=Verdict.MISSING, reason=level.reason)
        return [*found, missing]
    return [*found, _agreement(named, level), _distance(named, level, own)]


def _broken(level: Level) -> str | None:
    if level.reason == NOT_NUMBERS:
        return level.reason
    return f"{level.greedy.empty} answers are empty" if level.greedy.empty else None


def _identical(named: Finding, level: Level, own: Level | None, *, gated: bool) -> Finding:
    """The share of identical answers may fall below the baseline's with itself by up to the margin."""
    rule = METRICS["identical_answers"]
    share, n = level.greedy.share_identical, level.greedy.prompts
    shown = dataclasses.replace(
        named, rule=rule, gated=gated, candidate=share, n_candidate=n, margin=rule.margin
    )
    if own is None:
        unknown = "the baseline was not compared with itself"
        return dataclasses.replace(shown, verdict=Verdict.INCONCLUSIVE, reason=unknown)
    before, m = own.greedy.share_identical, own.greedy.prompts
    shown = dataclasses.replace(shown, baseline=before, n_baseline=m)
    low, high = loss_bounds(own.greedy.identical, m, level.greedy.identical, n)
    note = f"{named.cell}: loss {100 * (before - share):+.1f} points [{100 * low:+.1f}, {100 * high:+.1f}]"
    if not gated:
        note += "; not gated: the arms round in another order"
    verdict, reason = _three_way(before - share, low=low, high=high, margin=rule.margin)
    return dataclasses.replace(shown, verdict=verdict, reason=reason, notes=(*named.notes, note))


def _three_way(loss: float, *, low: float, high: float, margin: float) -> tuple[Verdict, str | None]:
    if high < margin or loss <= 0:
        return Verdict.PASS, None
    if low > 0 and loss > margin:
        return Verdict.FAIL, None
    return Verdict.INCONCLUSIVE, "the interval reaches the margin: compare more prompts"


def loss_bounds(lost: int, n: int, kept: int, m: int, *, alpha: float = ALPHA) -> tuple[float, float]:
    """One-sided bounds of lost / n - kept / m, each at `alpha`: Newcombe's score intervals (method 10)."""
    from statsmodels.stats.proportion import confint_proportions_2indep  # heavy; only where answers are

    low, high = confint_proportions_2indep(lost, n, kept, m, method="newcomb", alpha=2 * alpha)
    return float(low), float(high)


def _agreement(named: Finding, level: Level) -> Finding:
    """The best token agrees at 99 % of the positions where the baseline's leads clearly."""
    rule, forced = METRICS["clear_agreement"], level.forced
    assert forced is not None
    shown = dataclasses.replace(
        named,
        rule=rule,
        baseline=1.0,
        candidate=forced.clear_agree,
        n_baseline=forced.clear_positions,
        n_candidate=forced.clear_positions,
        margin=rule.margin,
    )
    if forced.clear_agree is None:
        reason = "no position with a clear best token"
        return dataclasses.replace(shown, verdict=Verdict.INCONCLUSIVE, reason=reason)
    _, high = wilson(forced.clear_agree, trials=forced.clear_positions, z=t_quantile(ALPHA, math.inf))
    least = 1 - rule.margin
    if forced.clear_agree >= least:
        return dataclasses.replace(shown, verdict=Verdict.PASS)
    verdict = Verdict.FAIL if high < least else Verdict.INCONCLUSIVE
    reason = f"{forced.clear_agree:.2%} of {forced.clear_positions} positions agree, {least:.0%} are needed"
    return dataclasses.replace(shown, verdict=verdict, reason=reason)


def _distance(named: Finding, level: Level, own: Level | None) -> Finding:
    """Mean KL divergence: up to three times the baseline's from itself, or what rounding makes."""
    rule, forced = METRICS["mean_kl"], level.forced
    assert forced is not None
    before = own.forced.mean_kl if own is not None and own.forced is not None else None
    most = max(rule.absolute, (1 + rule.margin) * (before or 0.0))
    shown = dataclasses.replace(
        named,
        rule=rule,
        baseline=before,
        candidate=forced.mean_kl,
        n_baseline=own.forced.positions if own is not None and own.forced is not None else 0,
        n_candidate=forced.positions,
    )
    if forced.mean_kl <= most:
        return dataclasses.replace(shown, verdict=Verdict.PASS)
    reason = f"mean KL {forced.mean_kl:.3g} nat, allowed are {most:.3g}"
    return dataclasses.replace(shown, verdict=Verdict.FAIL, reason=reason)
