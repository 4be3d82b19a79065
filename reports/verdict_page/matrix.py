"""The decision matrix: one row per cell, one column per metric, a verdict with its change in each field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reports.compare.effects import as_percent
from reports.compare.finding import Comparison, Finding
from reports.compare.metric_table import MetricRule
from reports.compare.words import Verdict
from reports.gate.summary import SEVERITY, SYMBOL
from reports.tables import BETTER_WORDS
from reports.verdict_page.words import (
    Effect,
    arrow,
    effect,
    loss_percent,
    shown_metrics,
    signed,
    title,
    unit,
    worst_word,
)


@dataclass(frozen=True, kw_only=True)
class Column:
    """One metric."""

    name: str
    title: str
    unit: str
    arrow: str
    better: str
    gated: bool


@dataclass(frozen=True, kw_only=True)
class CellRow:
    """One cell. `number`: what drawings call it; `whole`: set for a cell with one verdict and no metrics."""

    number: int
    cell_id: str
    anchor: str
    name: str
    word: str
    symbol: str
    rank: int  # of its verdict, 0 is the worst
    gated: bool
    words: list[str]  # all of its verdicts, for the filter
    worst: float | None  # largest loss in percent among what decides its verdict
    whole: Effect | None
    fields: list[Effect | None]  # one per column; None: not measured
    findings: list[Finding]


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """All that the template needs."""

    columns: list[Column]
    rows: list[CellRow]
    counts: list[tuple[str, str, int]]  # word, symbol, cells; worst first
    mean: list[str]  # one line per column: mean over the cells beside the worst


def decision_matrix(comparison: Comparison) -> Matrix:
    """Rows in the order of the comparison, which is that of the cells' names."""
    gated = comparison.tier.gated if comparison.tier else []
    rules = shown_metrics(comparison.findings, gated)
    by_cell: dict[str, list[Finding]] = {}
    for one in comparison.findings:
        by_cell.setdefault(one.cell_id, []).append(one)
    rows = [_row(index, found, rules) for index, found in enumerate(by_cell.values(), start=1)]
    words = [row.word for row in rows]
    return Matrix(
        columns=[_column(rule, rule.name in gated) for rule in rules],
        rows=rows,
        counts=[(str(word), SYMBOL[word], words.count(word)) for word in SEVERITY if word in words],
        mean=[text for rule in rules if (text := _mean(rule, rows))],
    )


def _column(rule: MetricRule, gated: bool) -> Column:
    return Column(
        name=rule.name,
        title=title(rule),
        unit=rule.unit,
        arrow=arrow(rule),
        better=BETTER_WORDS[rule.better],
        gated=gated,
    )


def _row(index: int, found: Sequence[Finding], rules: Sequence[MetricRule]) -> CellRow:
    deciding = [one for one in found if one.gated] or list(found)
    word = worst_word(deciding) or Verdict.MISSING
    losses = [loss for one in deciding if (loss := loss_percent(one)) is not None]
    by_metric: Mapping[str, Finding] = {one.rule.name: one for one in found if one.rule is not None}
    whole = next((one for one in found if one.rule is None), None)
    return CellRow(
        number=index,
        cell_id=found[0].cell_id,
        anchor=f"cell-{index}",
        name=found[0].cell,
        word=str(word),
        symbol=SYMBOL[word],
        rank=SEVERITY.index(word),
        gated=any(one.gated for one in found),
        words=sorted({str(one.verdict) for one in deciding}),
        worst=max(losses, default=None),
        whole=effect(whole) if whole is not None else None,
        fields=[effect(by_metric[rule.name]) if rule.name in by_metric else None for rule in rules],
        findings=list(found),
    )


def _mean(rule: MetricRule, rows: Sequence[CellRow]) -> str:
    """An average is only shown with the worst cell beside it."""
    losses = [
        (one.estimate.mean, row.number)
        for row in rows
        for one in row.findings
        if one.rule is not None and one.rule.name == rule.name and one.estimate is not None
    ]
    if len(losses) < 2:
        return ""
    mean = sum(loss for loss, _ in losses) / len(losses)
    worst, number = max(losses)
    return (
        f"{title(rule)}: mean loss {_loss(rule, mean)} over {len(losses)} cells; the largest"
        f" {_loss(rule, worst)} in cell {number}"
    )


def _loss(rule: MetricRule, loss: float) -> str:
    return f"{signed(as_percent(rule, loss) or 0.0, 2)} {unit(rule)}"
