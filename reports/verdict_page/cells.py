"""The section of each cell: its numbers, launches and requests, and the command that measures it again."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.records import Record, flagged
from reports.compare.cells import LaunchNumbers
from reports.compare.finding import Finding
from reports.compare.metric_table import METRICS, MetricRule
from reports.compare.words import Verdict
from reports.tables import DASH, status_text
from reports.verdict_page.inputs import ArmRun, Compared
from reports.verdict_page.matrix import CellRow, Column
from reports.verdict_page.sketch import Sketch, load_quantiles, sketches
from reports.verdict_page.words import Effect, arrow, as_change, effect, signed, title, unit, value_text

MOST_FULL_ROWS = 1500  # rows of metrics over the whole page; beyond, what is not gated becomes a line
MOST_LAUNCHES = 24
MOST_LOGS = 4
OPEN = (Verdict.PASS, Verdict.IMPROVED, Verdict.INCONCLUSIVE)
WORST = 20  # cells whose requests are drawn although nothing about them is gated or failed


@dataclass(frozen=True, kw_only=True)
class MetricRow:
    """One metric with everything that its verdict stands on."""

    name: str
    arrow: str
    effect: Effect
    holm: str


@dataclass(frozen=True, kw_only=True)
class LaunchRow:
    """One pair of launches, or one launch where there are no pairs."""

    pair: int
    order: str
    baseline: str
    candidate: str
    change: str


@dataclass(frozen=True, kw_only=True)
class Said:
    """What the records of one arm say of the cell."""

    role: str
    command: str
    statuses: str
    logs: list[tuple[str, str]]  # address relative to the page, text
    problems: list[str]


@dataclass(frozen=True, kw_only=True)
class CellPage:
    """All that the template needs."""

    row: CellRow
    metrics: list[MetricRow]
    others: list[str]  # metrics that are not gated, one line each
    launches: list[LaunchRow]
    in_line: bool  # whether the launches are a line instead of a table
    launch_metric: str
    arms: list[Said]
    sketches: list[Sketch]


def cell_pages(data: Compared, columns: Sequence[Column], rows: Sequence[CellRow]) -> list[CellPage]:
    """In the order of the matrix. The cells with the worst verdicts have their whole tables."""
    drawn = drawn_cells(rows)
    quantiles = load_quantiles(data, drawn)
    full = _full_tables(rows)
    records = [_by_cell(arm) for arm in data.arms]
    metric = next((METRICS[one.name] for one in columns), None)
    return [
        CellPage(
            row=row,
            metrics=[
                _metric(one)
                for one in sorted(row.findings, key=lambda one: not one.gated)
                if _in_table(one, row.cell_id in full)
            ],
            others=[_line(one) for one in row.findings if not _in_table(one, row.cell_id in full)],
            launches=_launches(data, row.cell_id, metric) if metric else [],
            in_line=row.cell_id not in full,
            launch_metric=f"{title(metric)} ({metric.unit}) {arrow(metric)}" if metric else "",
            arms=_said(data, row.cell_id, records),
            sketches=sketches(row.cell_id, quantiles) if row.cell_id in drawn else [],
        )
        for row in rows
    ]


def drawn_cells(rows: Sequence[CellRow]) -> set[str]:
    """Gated, failed, and the worst of the others."""
    chosen = {row.cell_id for row in rows if row.gated or row.word == Verdict.FAIL}
    ranked = sorted(rows, key=lambda row: (row.rank, -(row.worst if row.worst is not None else -1e300)))
    return chosen | {row.cell_id for row in ranked[:WORST]}


def _full_tables(rows: Sequence[CellRow]) -> set[str]:
    """Cells whose metrics all stand in the table, worst verdicts first, as long as the page has room."""
    left, full = MOST_FULL_ROWS, set()
    for row in sorted(rows, key=lambda row: (row.rank, row.number)):
        left -= len(row.findings)
        if left < 0:
            break
        full.add(row.cell_id)
    return full


def _in_table(one: Finding, full: bool) -> bool:
    return one.rule is not None and (full or one.gated or one.verdict is Verdict.FAIL)


def _metric(one: Finding) -> MetricRow:
    rule, shown = one.rule, effect(one)
    assert rule is not None
    if not one.gated and one.verdict in OPEN:  # nothing was asked of it, so it fails nothing
        shown = dataclasses.replace(shown, why="")
    return MetricRow(
        name=rule.name,
        arrow=arrow(rule),
        effect=shown,
        holm="" if one.p_holm is None else f"{one.p_holm:.3f}" if one.p_holm >= 0.001 else "< 0.001",
    )


def _line(one: Finding) -> str:
    shown = effect(one)
    if one.rule is None:
        return f"{shown.symbol} {shown.word}: {shown.why}" if shown.why else f"{shown.symbol} {shown.word}"
    return f"{one.rule.name}{arrow(one.rule)} {shown.change} {shown.interval}".rstrip()


def _by_cell(arm: ArmRun) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for record in arm.records:
        found.setdefault(record.cell_id, []).append(record)
    return found


def _launches(data: Compared, cell_id: str, rule: MetricRule) -> list[LaunchRow]:
    """The first column's metric in every launch, those left out included."""
    comparison = data.judgement.comparison
    sides = [side.get(cell_id) for side in (comparison.baseline, comparison.candidate)]
    by_pair: list[dict[int, LaunchNumbers]] = [
        {one.pair: one for one in side.launches} if side else {} for side in sides
    ]
    pairs = sorted(by_pair[0].keys() | by_pair[1].keys())[:MOST_LAUNCHES]
    return [_launch(pair, by_pair[0].get(pair), by_pair[1].get(pair), rule) for pair in pairs]


def _launch(
    pair: int, baseline: LaunchNumbers | None, candidate: LaunchNumbers | None, rule: MetricRule
) -> LaunchRow:
    change, order = DASH, DASH
    if baseline is not None and candidate is not None:
        order = "candidate first" if candidate.slot < baseline.slot else "baseline first"
        b, c = (one.values.get(rule.name) for one in (baseline, candidate))
        if not (baseline.cause or candidate.cause or b is None or c is None):
            change = _pair_change(rule, b, c)
    return LaunchRow(
        pair=pair,
        order=order,
        baseline=_launch_text(baseline, rule),
        candidate=_launch_text(candidate, rule),
        change=change,
    )


def _pair_change(rule: MetricRule, baseline: float, candidate: float) -> str:
    if rule.scale == "difference":
        return f"{signed(as_change(rule, rule.worse_sign * (candidate - baseline)), 2)} {unit(rule)}"
    if baseline <= 0:
        return DASH
    return f"{signed(100.0 * (candidate / baseline - 1.0), 2)} {unit(rule)}"


def _launch_text(one: LaunchNumbers | None, rule: MetricRule) -> str:
    if one is None:
        return f"{DASH} no launch"
    if one.cause:
        return f"{DASH} left out: {one.cause}"
    if rule.name not in one.values:
        return f"{DASH} {one.absent.get(rule.name, 'not recorded')}"
    return value_text(one.values[rule.name], rule)


def _said(data: Compared, cell_id: str, records: Sequence[Mapping[str, list[Record]]]) -> list[Said]:
    found = []
    for role, arm, by_cell in zip(("baseline", "candidate"), data.arms, records, strict=True):
        mine = by_cell.get(cell_id, [])
        if mine:
            found.append(_arm_says(role, arm, data, mine))
    return found


def _arm_says(role: str, arm: ArmRun, data: Compared, records: Sequence[Record]) -> Said:
    totals: dict[str, int] = {}
    for record in records:
        for name, count in record.statuses.items():
            totals[name] = totals.get(name, 0) + count
    troubled = sorted(records, key=lambda record: record.state.has_numbers)  # their logs matter most
    logs = list(dict.fromkeys(record.log for record in troubled if record.log))
    return Said(
        role=role,
        command=records[0].command,
        statuses=status_text(totals),
        logs=[(_address(arm, data, log), log) for log in logs[:MOST_LOGS]],
        problems=list(dict.fromkeys(_problem(record) for record in records if _problem(record))),
    )


def _address(arm: ArmRun, data: Compared, log: str) -> str:
    """Of a log in either run's folder, as seen from the page."""
    return os.path.relpath(arm.folder / log, data.folder.resolve()).replace(os.sep, "/")


def _problem(record: Record) -> str:
    said = [f"{record.state}: {record.reason}"] if record.reason else []
    said += [f"check {name}: {record.checks[name].detail}" for name in flagged(record)]
    return f"launch {record.launch_id}: {'; '.join(said)}" if said else ""
