"""Are the answers still right? Verdicts on accuracy, acceptance, equivalence; the scores of both arms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.accuracy.score import AccuracyScore, Proportion
from harness.records import Record
from reports.compare.finding import CORRECTNESS, Finding
from reports.equivalence_section import Section as Equivalence
from reports.equivalence_section import equivalence_section
from reports.load import RunData
from reports.tables import DASH
from reports.verdict_page.flips import Flips, flips
from reports.verdict_page.inputs import ArmRun, Compared
from reports.verdict_page.words import Effect, counted, effect, signed

MOST_ROWS = 200


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One verdict on correctness."""

    gate: str
    cell: str
    metric: str
    effect: Effect


@dataclass(frozen=True, kw_only=True)
class Score:
    """One accuracy task of one cell, both arms beside each other."""

    cell: str
    task: str
    baseline: str
    candidate: str
    change: str
    cut: str  # truncated, unparsable and failed answers, baseline / candidate


@dataclass(frozen=True, kw_only=True)
class Correctness:
    """All that the template needs."""

    judged: list[Judged]
    scores: list[Score]
    flips: Flips
    equivalence: Equivalence | None
    left_out: str


def correctness(data: Compared) -> Correctness:
    """Everything that says whether the candidate answers as it should."""
    findings = [*data.judgement.others, *data.judgement.comparison.findings]
    judged = [_judged(one) for one in findings if one.gate in CORRECTNESS and (one.gated or _is_length(one))]
    scores = _scores(data)
    left = len(judged) - MOST_ROWS
    return Correctness(
        judged=judged[:MOST_ROWS],
        scores=scores[:MOST_ROWS],
        flips=flips(data),
        equivalence=_equivalence(data),
        left_out=f"{counted(left, 'more row')} in verdict.json" if left > 0 else "",
    )


def _is_length(one: Finding) -> bool:
    """Acceptance per position stands with the drafts; here the length alone, and what is no metric."""
    return one.rule is None or one.rule.name == "al"


def _judged(one: Finding) -> Judged:
    return Judged(
        gate=one.gate, cell=one.cell, metric=one.rule.name if one.rule else one.gate, effect=effect(one)
    )


def _scores(data: Compared) -> list[Score]:
    """By cell, task and part; a task that one arm alone was asked has a dash for the other."""
    arms = [_last_scores(arm) for arm in data.arms]
    labels = {record.cell_id: record for arm in data.arms for record in arm.records}
    return [
        _score(labels[key[0]], arms[0].get(key), arms[1].get(key))
        for key in dict.fromkeys([*arms[0], *arms[1]])
    ]


def _last_scores(arm: ArmRun) -> dict[tuple[str, str, str], AccuracyScore]:
    return {
        (record.cell_id, score.task, score.part): score for record in arm.records for score in record.accuracy
    }


def _score(record: Record, baseline: AccuracyScore | None, candidate: AccuracyScore | None) -> Score:
    score = candidate or baseline
    assert score is not None
    path = str(record.requested.get("path") or "")
    return Score(
        cell=record.label.removeprefix(f"{path} "),
        task=f"{score.task}, {score.part}, {score.shots} shots, c{score.concurrency}",
        baseline=_share(baseline),
        candidate=_share(candidate),
        change=_points(baseline, candidate),
        cut=" / ".join(_cut(one) for one in (baseline, candidate)),
    )


def _share(score: AccuracyScore | None) -> str:
    if score is None:
        return f"{DASH} not asked"
    found: Proportion | None = score.acc_numeric
    if found is None or found.value is None:
        return f"{DASH} {score.reason or 'no answer'}"
    interval = (
        "" if found.low is None or found.high is None else f" [{100 * found.low:.1f}, {100 * found.high:.1f}]"
    )
    return f"{100 * found.value:.2f} %{interval} of {found.n:,}"


def _points(baseline: AccuracyScore | None, candidate: AccuracyScore | None) -> str:
    values = [
        one.acc_numeric.value if one is not None and one.acc_numeric is not None else None
        for one in (baseline, candidate)
    ]
    b, c = values
    return DASH if b is None or c is None else f"{signed(100 * (c - b), 2)} pt"


def _cut(score: AccuracyScore | None) -> str:
    if score is None:
        return DASH
    return f"{score.truncated} cut, {score.unparsable} without a number, {score.errors} failed"


def _equivalence(data: Compared) -> Equivalence | None:
    """Of the run of the candidate, which the baseline is part of when both were planned together."""
    run = data.candidate.run or data.baseline.run
    if run is None:
        return None
    seen: dict[tuple[str, str, str], Record] = {}
    for arm in data.arms:
        for record in arm.records:
            if record.equivalence is not None:
                seen[record.run_id, record.launch_id, record.cell_id] = record
    records: Sequence[Record] = list(seen.values())
    return equivalence_section(RunData(run_dir=data.folder, run=run, records=list(records)))
