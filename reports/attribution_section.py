"""The section of the page on where a difference comes from: waterfalls, a table, what was left out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from reports.attribution import Condition, Contribution, Ladder, attribute
from reports.load import RunData
from reports.plots import MAX_PANELS
from reports.svg import Plot, letter
from reports.tables import DASH, number, signed
from reports.waterfall import draw_waterfall


@dataclass(frozen=True)
class Share:
    """One contribution of one metric as text."""

    log: str
    percent: str
    span: str  # lowest to highest round
    mean: str  # with its interval, where there are rounds enough
    rounds: str
    words: str


@dataclass(frozen=True)
class Row:
    """One switch, or the total, with every metric."""

    letter: str
    switch: str
    arms: str
    shares: list[Share]


@dataclass(frozen=True)
class RoundTable:
    """The logarithms of each round, which add up within it."""

    title: str
    rows: list[tuple[int, list[str]]]


@dataclass(frozen=True)
class Part:
    """One condition."""

    title: str
    plots: list[Plot]
    rows: list[Row]
    sums: list[str]
    by_round: list[RoundTable]
    gaps: list[str]
    cautions: list[str]


@dataclass(frozen=True)
class Section:
    """All that the template needs."""

    name: str
    rounds: int
    metrics: list[str]
    parts: list[Part]
    unfinished: str
    chance: str


def attribution_section(data: RunData) -> Section | None:
    """None for a run that was no experiment."""
    experiment = data.run.experiment
    if experiment is None:
        return None
    conditions = attribute(experiment, data.records)
    return Section(
        name=experiment.name,
        rounds=experiment.rounds,
        metrics=[ladder.title for ladder in conditions[0].ladders] if conditions else [],
        parts=[_part(index, condition) for index, condition in enumerate(conditions)],
        unfinished=_unfinished(data.run.plan, len(data.records)),
        chance=_chance(experiment.rounds),
    )


def _unfinished(plan: Sequence[dict[str, Any]], records: int) -> str:
    planned = sum(len(launch["cells"]) for launch in plan)
    if records >= planned:
        return ""
    return (
        f"{planned - records:,} of {planned:,} planned cells have no record: the run did not end, or goes on"
    )


def _chance(rounds: int) -> str:
    """What it means that all rounds agree, without any statistics."""
    if rounds < 2:
        return "One round has no spread: nothing can be told from 0."
    return (
        f"“In all of {rounds} rounds” is weak evidence: a switch that does nothing comes out on one side in"
        f" all of them in 1 of {2 ** (rounds - 1)} cases."
    )


def _part(index: int, condition: Condition) -> Part:
    plots = [
        draw_waterfall(ladder, prefix=f"waterfall{index}-{ladder.metric}")
        for ladder in (condition.ladders if index < MAX_PANELS else [])
    ]
    return Part(
        title=condition.title,
        plots=[plot for plot in plots if plot is not None],
        rows=_rows(condition.ladders),
        sums=[text for ladder in condition.ladders if (text := _sum(ladder))],
        by_round=[_by_round(ladder) for ladder in condition.ladders],
        gaps=[
            f"Round {gap.round}, {gap.path}: {gap.reason}. Left out of: {', '.join(gap.touches)}."
            for gap in condition.gaps
        ],
        cautions=condition.cautions,
    )


def _lines(ladder: Ladder) -> list[Contribution]:
    return [*ladder.contributions, ladder.total]


def _rows(ladders: Sequence[Ladder]) -> list[Row]:
    columns = list(zip(*(_lines(ladder) for ladder in ladders), strict=True))
    return [
        Row(
            letter="Σ" if place == len(columns) - 1 else letter(place),
            switch=row[0].switch,
            arms=f"{row[0].before} → {row[0].after}",
            shares=[_share(one) for one in row],
        )
        for place, row in enumerate(columns)
    ]


def _share(one: Contribution) -> Share:
    rounds = f"{one.n} of {one.rounds} rounds"
    if one.middle is None or one.range is None:
        return Share(log=DASH, percent=DASH, span="", mean="", rounds=rounds, words=one.words)
    low, high = one.range
    return Share(
        log=signed(one.middle),
        percent=percent(one.middle),
        span=f"{signed(low)} … {signed(high)}",
        mean=mean_text(one),
        rounds=rounds,
        words=one.words,
    )


def mean_text(one: Contribution) -> str:
    """ "mean +0.080 [+0.060, +0.100]", without the interval where there is one round; "" without any."""
    if one.mean is None:
        return ""
    if one.interval is None:
        return f"mean {signed(one.mean)}"
    low, high = one.interval
    return f"mean {signed(one.mean)} [{signed(low)}, {signed(high)}]"


def percent(log: float) -> str:
    """The change that a logarithm stands for.

    >>> percent(math.log(2)), percent(math.log(0.5)), percent(0.0)
    ('+100 %', '−50.0 %', '0 %')
    """
    change = math.expm1(log) * 100
    return f"{'+' if change > 0 else '−' if change < 0 else ''}{number(abs(change))} %"


def _sum(ladder: Ladder) -> str:
    """Medians of several rounds need not add up, though each round does: by how much, in a sentence."""
    bars, total = ladder.sum_of_medians, ladder.total.middle
    if bars is None or total is None:
        return f"{ladder.title}: a switch or the total has no value, so the bars do not lead to the total"
    return (
        f"{ladder.title}: the medians add up to {signed(bars)}, the median of the totals is {signed(total)}"
    )


def _by_round(ladder: Ladder) -> RoundTable:
    rows = []
    for turn in range(1, ladder.total.rounds + 1):
        logs = [one.by_round.get(turn) for one in _lines(ladder)]
        rows.append((turn, [DASH if log is None else signed(log) for log in logs]))
    return RoundTable(title=ladder.title, rows=rows)
