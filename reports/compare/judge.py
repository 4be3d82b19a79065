"""One metric of one cell: values of usable launches → finding. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from harness.tier import ALPHA, Tier
from reports.compare.cells import NOT_A_NUMBER, LaunchNumbers
from reports.compare.decide import decide
from reports.compare.effects import (
    absolute_of,
    center,
    change_percent,
    is_total_loss,
    margin_of,
    signed,
    why_no_ratio,
)
from reports.compare.estimate import Estimate, from_arms, from_pairs
from reports.compare.finding import Finding
from reports.compare.floor import NoiseFloor
from reports.compare.metric_table import MetricRule
from reports.compare.pairing import Pairing
from reports.compare.words import Verdict

ONE_PAIR = "single-run: one pair proves nothing"


def judge_metric(
    context: Finding, pairing: Pairing, *, tier: Tier | None, floor: NoiseFloor
) -> Finding | None:
    """`context` with the verdict on its metric; None when neither arm has a value."""
    rule = context.rule
    assert rule is not None
    found = _values(context, rule, pairing)
    if found.verdict is not Verdict.PASS:
        return found
    if not found.n_baseline:
        return None
    if pairing.interleaved:
        pairs = [(b, c) for b, c in pairing.pairs if rule.name in b.values and rule.name in c.values]
        baseline = [b.values[rule.name] for b, _ in pairs]
        candidate = [c.values[rule.name] for _, c in pairs]
        first = [c.slot < b.slot for b, c in pairs]
    else:
        baseline = [one.values[rule.name] for one in pairing.baseline if rule.name in one.values]
        candidate = [one.values[rule.name] for one in pairing.candidate if rule.name in one.values]
        first = []
    fewest = tier.pairs.min if tier else 2
    if not baseline:
        return dataclasses.replace(
            found, verdict=Verdict.INCONCLUSIVE, reason="no pair has it in both launches"
        )
    problem = why_no_ratio(rule, baseline, candidate)
    if problem is not None:
        lost = is_total_loss(rule, baseline, candidate) and len(candidate) >= fewest
        return dataclasses.replace(
            found, verdict=Verdict.FAIL if lost else Verdict.INCONCLUSIVE, reason=problem
        )
    if min(len(baseline), len(candidate)) < 2:
        return dataclasses.replace(found, verdict=Verdict.INCONCLUSIVE, reason=ONE_PAIR)
    noise = floor.of(context.cell_id, rule.name) if pairing.interleaved else None
    xs, ys = signed(rule, baseline), signed(rule, candidate)
    if pairing.interleaved:
        estimate = from_pairs(ys - xs, first, alpha=tier.alpha if tier else ALPHA, noise=noise)
    else:
        estimate = from_arms(xs, ys, alpha=ALPHA)
    return _decided(found, rule, estimate, floor=floor, tier=tier, fewest=fewest)


def _values(context: Finding, rule: MetricRule, pairing: Pairing) -> Finding:
    """Means of both arms; verdict other than PASS where one of them, or both, cannot be compared."""
    arms = (pairing.baseline, pairing.candidate)
    b, c = ([one.values[rule.name] for one in arm if rule.name in one.values] for arm in arms)
    found = dataclasses.replace(
        context,
        baseline=center(rule, b),
        candidate=center(rule, c),
        n_baseline=len(b),
        n_candidate=len(c),
        change_pct=change_percent(center(rule, b), center(rule, c)),
    )
    reasons = [[one.absent[rule.name] for one in arm if rule.name in one.absent] for arm in arms]
    if NOT_A_NUMBER in (*reasons[0], *reasons[1]):
        which = "baseline" if NOT_A_NUMBER in reasons[0] else "candidate"
        return dataclasses.replace(found, verdict=Verdict.INVALID, reason=f"{which}: {NOT_A_NUMBER}")
    if c and not b:
        why = reasons[0][0] if reasons[0] else "the baseline does not have this metric"
        return dataclasses.replace(found, verdict=Verdict.NEW, reason=f"not in the baseline: {why}")
    if b and not c:
        why = reasons[1][0] if reasons[1] else "the candidate does not have this metric"
        return dataclasses.replace(found, verdict=Verdict.MISSING, reason=f"not in the candidate: {why}")
    return found


def _decided(
    found: Finding,
    rule: MetricRule,
    estimate: Estimate,
    *,
    floor: NoiseFloor,
    tier: Tier | None,
    fewest: int,
) -> Finding:
    noise = floor.of(found.cell_id, rule.name) if estimate.interleaved else None
    noise_floor = noise.floor(estimate.n) if noise else None
    asked = margin_of(rule, tier.margins.get(rule.name) if tier else None)
    margin = max(asked, noise_floor or 0.0, absolute_of(rule, found.baseline))
    decision = decide(
        estimate,
        margin=margin,
        floor=noise_floor,
        why_no_floor=floor.why_not(found.cell_id, rule.name),
        fewest=fewest if estimate.interleaved else 2,
    )
    return dataclasses.replace(
        found,
        verdict=decision.verdict,
        reason=decision.reason,
        estimate=estimate,
        margin=margin,
        floor=noise_floor,
        notes=(*found.notes, *_remarks(estimate, asked, noise_floor)),
    )


def _remarks(estimate: Estimate, asked: float, noise_floor: float | None) -> list[str]:
    """What a reader must know beside the numbers."""
    remarks = []
    if not estimate.interleaved:
        remarks.append("not interleaved")
    if noise_floor is not None and noise_floor > asked:
        remarks.append(
            f"the noise floor ({noise_floor:.2%}) is above the margin ({asked:.2%}): the machine is too noisy"
        )
    if (
        estimate.slot_effect is not None
        and noise_floor is not None
        and abs(estimate.slot_effect) > noise_floor
    ):
        remarks.append(f"running second costs {estimate.slot_effect:+.2%}; the order is balanced against it")
    if estimate.shrinkage.startswith("refused"):
        remarks.append(f"no variance borrowed: {estimate.shrinkage}")
    return remarks


def usable_losses(
    rule: MetricRule, launches: Sequence[tuple[LaunchNumbers, LaunchNumbers]]
) -> tuple[float, ...]:
    """Losses of the pairs that have the metric in both launches, for an A/A run."""
    pairs = [(b, c) for b, c in launches if rule.name in b.values and rule.name in c.values]
    baseline = [b.values[rule.name] for b, _ in pairs]
    candidate = [c.values[rule.name] for _, c in pairs]
    if not pairs or why_no_ratio(rule, baseline, candidate) is not None:
        return ()
    return tuple(float(x) for x in np.asarray(signed(rule, candidate) - signed(rule, baseline)))
