"""Two arms → findings. The order of records, cells and metrics does not matter. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from harness.tier import Tier
from reports.compare.cells import ArmCell, difference, natural_key
from reports.compare.comparability import why_not_comparable
from reports.compare.decide import holm
from reports.compare.finding import Comparison, Finding
from reports.compare.floor import NO_FLOOR, NoiseFloor
from reports.compare.judge import judge_metric
from reports.compare.metric_table import METRICS
from reports.compare.pairing import Pairing, nothing_usable, pair_launches
from reports.compare.words import Verdict

COMMON_SHIFT = 0.9  # share of cells that move alike
COMMON_SHIFT_CELLS = 5


@dataclass(frozen=True, kw_only=True)
class Arms:
    """What is compared. `required`: cells that the plan has, by id, with their names.

    `refusal`: why nothing of the two may be compared; None when it may.
    """

    baseline: Mapping[str, ArmCell]
    candidate: Mapping[str, ArmCell]
    interleaved: bool
    refusal: str | None = None
    required: Mapping[str, str] = dataclasses.field(default_factory=dict)
    dtypes_under_test: Collection[str] = ()


def compare(arms: Arms, *, tier: Tier | None, floor: NoiseFloor = NO_FLOOR) -> Comparison:
    """Every cell of either arm and every metric of the table that it has. `tier` None: nothing is gated."""
    if arms.refusal is not None:
        return _refused(arms.refusal, arms, tier)
    names = dict(arms.required)
    for side in (arms.candidate, arms.baseline):
        names |= {cell_id: cell.name for cell_id, cell in side.items()}
    findings: list[Finding] = []
    exclusions: list[str] = []
    notes = _renamed(arms)
    for cell_id in sorted(names, key=lambda one: (natural_key(names[one]), one)):
        found = _compare_cell(arms, cell_id, names[cell_id], tier, floor)
        findings += found.findings
        exclusions += [f"{names[cell_id]}: {line}" for line in found.exclusions]
        notes += [f"{names[cell_id]}: {line}" for line in found.notes]
    findings = with_holm(findings)
    return Comparison(
        findings=tuple(findings),
        tier=tier,
        interleaved=arms.interleaved,
        baseline=dict(arms.baseline),
        candidate=dict(arms.candidate),
        exclusions=tuple(exclusions),
        notes=(*notes, *([] if arms.interleaved else _common_shift(findings))),
        floor_source=floor.source,
        floor_date=floor.measured_on,
        floor_problem=floor.problem,
    )


def _refused(reason: str, arms: Arms, tier: Tier | None) -> Comparison:
    """One verdict for the whole: cells of other hardware have other identities, and no partner."""
    every = Finding(
        gate="measurement",
        cell_id="",
        cell="every cell",
        verdict=Verdict.NOT_COMPARABLE,
        gated=tier is not None,
        reason=reason,
    )
    return Comparison(findings=(every,), tier=tier, interleaved=arms.interleaved)


@dataclass(frozen=True, kw_only=True)
class _CellResult:
    findings: Sequence[Finding]
    exclusions: Sequence[str] = ()
    notes: Sequence[str] = ()


def _compare_cell(arms: Arms, cell_id: str, name: str, tier: Tier | None, floor: NoiseFloor) -> _CellResult:
    baseline, candidate = arms.baseline.get(cell_id), arms.candidate.get(cell_id)
    whole = Finding(
        gate="measurement",
        cell_id=cell_id,
        cell=name,
        verdict=Verdict.PASS,
        gated=tier is not None,
        command=candidate.command if candidate else "",
    )
    if candidate is None:
        where = "of the candidate" if baseline else "of either arm, though the plan has it"
        missing = dataclasses.replace(whole, verdict=Verdict.MISSING, reason=f"no record {where}")
        return _CellResult(findings=[missing])
    if baseline is None:
        return _new_cell(whole, candidate)
    refusal = why_not_comparable(baseline, candidate, dtypes_under_test=arms.dtypes_under_test)
    if refusal:
        return _CellResult(
            findings=[dataclasses.replace(whole, verdict=Verdict.NOT_COMPARABLE, reason=refusal)]
        )
    pairing = pair_launches(baseline, candidate, interleaved=arms.interleaved, tier=tier)
    if pairing.verdict is not None:
        return _CellResult(findings=[_without_numbers(whole, pairing)], exclusions=pairing.exclusions)
    return _compare_metrics(whole, pairing, baseline.metrics() | candidate.metrics(), tier, floor)


def _new_cell(whole: Finding, candidate: ArmCell) -> _CellResult:
    """Shown, not judged; but a cell without numbers is no news."""
    alone = nothing_usable(candidate)
    if alone is None:
        new = dataclasses.replace(whole, verdict=Verdict.NEW, reason="no such cell in the baseline")
        return _CellResult(findings=[new])
    return _CellResult(findings=[_without_numbers(whole, alone)], exclusions=alone.exclusions)


def _without_numbers(whole: Finding, pairing: Pairing) -> Finding:
    assert pairing.verdict is not None
    return dataclasses.replace(
        whole, verdict=pairing.verdict, reason=pairing.reason, infrastructure=pairing.infrastructure
    )


def _compare_metrics(
    whole: Finding, pairing: Pairing, present: Collection[str], tier: Tier | None, floor: NoiseFloor
) -> _CellResult:
    gated = tier.gated if tier else []
    findings = []
    silent: dict[str, str] = {}
    for name, rule in METRICS.items():
        if name not in present:
            continue
        context = dataclasses.replace(
            whole, gate=rule.gate, rule=rule, gated=name in gated, notes=pairing.flags
        )
        found = judge_metric(context, pairing, tier=tier, floor=floor)
        if found is None:
            silent[name] = f"{name} has no value in either arm: {_why_absent(pairing, name)}"
        else:
            findings.append(found)
    if gated and not any(one.gated for one in findings):
        why = next(iter(silent.values())) if silent else f"none of {', '.join(gated)} was measured"
        findings.insert(
            0, dataclasses.replace(whole, verdict=Verdict.MISSING, reason=f"nothing to judge: {why}")
        )
    elif tier is not None and not gated:
        findings.insert(0, whole)
    notes = [line for name, line in silent.items() if name in gated]
    return _CellResult(findings=findings, exclusions=pairing.exclusions, notes=notes)


def _why_absent(pairing: Pairing, name: str) -> str:
    launches = (*pairing.baseline, *pairing.candidate)
    return next((one.absent[name] for one in launches if name in one.absent), "no launch says why")


def with_holm(findings: Sequence[Finding]) -> list[Finding]:
    """Judges all gated alarms together: takes back a FAIL that Holm's adjustment does not support.

    One family over cells and metrics: what CI sees is one alarm for the whole, and it must not be a false
    one in more than 5 % of the runs, however many cells and metrics there are.
    """
    family = [i for i, one in enumerate(findings) if one.gated and one.estimate is not None]
    result = list(findings)
    adjusted = holm([e.p_worse for i in family if (e := findings[i].estimate) is not None])
    for index, p in zip(family, adjusted, strict=True):
        result[index] = _adjusted(findings[index], p, len(family))
    return result


def _adjusted(finding: Finding, p: float, family: int) -> Finding:
    assert finding.estimate is not None
    unsupported = finding.verdict is Verdict.FAIL and p > finding.estimate.alpha
    if not unsupported:
        return dataclasses.replace(finding, p_holm=p)
    reason = f"one alarm among {family} verdicts: adjusted p {p:.3f} is above {finding.estimate.alpha:.3g}"
    return dataclasses.replace(finding, p_holm=p, verdict=Verdict.INCONCLUSIVE, reason=reason)


def _renamed(arms: Arms) -> list[str]:
    """Cells that are only in one arm, under a name that the other arm has too."""
    gone = {one.name: one for cell_id, one in arms.baseline.items() if cell_id not in arms.candidate}
    new = {one.name: one for cell_id, one in arms.candidate.items() if cell_id not in arms.baseline}
    return [
        f"{name}: the same name, another cell: "
        + ("; ".join(difference(gone[name].requested, new[name].requested)) or "its files differ")
        for name in sorted(gone.keys() & new.keys(), key=natural_key)
    ]


def _common_shift(findings: Sequence[Finding]) -> list[str]:
    """When nearly all cells of separate runs move alike, the machine is the first suspect."""
    notes = []
    for name in METRICS:
        moved = [
            one.estimate.mean if one.estimate else None
            for one in findings
            if one.gated and one.rule is not None and one.rule.name == name
        ]
        losses = [loss for loss in moved if loss is not None]
        if len(losses) < COMMON_SHIFT_CELLS:
            continue
        margin = METRICS[name].margin
        share = max(sum(x > margin for x in losses), sum(x < -margin for x in losses)) / len(losses)
        if share >= COMMON_SHIFT:
            notes.append(
                f"{name}: {share:.0%} of {len(losses)} cells moved the same way; suspect the machine or the"
                " baseline, and measure both arms in one plan"
            )
    return notes
