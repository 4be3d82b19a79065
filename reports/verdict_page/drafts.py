"""Speculative decoding in both arms, and how much of a change comes from acceptance and how much from cost.

In one pair of launches, with S = TPOT baseline / TPOT candidate, E the tokens that a verification emitted, AL
the acceptance length, K = AL / E what was cut behind the ends of answers, and C = TPOT · E the time of one
verification: ln S = Δ ln AL - Δ ln K - Δ ln C, where Δ is candidate minus baseline. Above 0 is faster.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reports.attribution import TOTAL, Contribution, Ladder
from reports.attribution_section import mean_text
from reports.compare.cells import ArmCell, LaunchNumbers
from reports.compare.finding import Comparison
from reports.compare.metric_table import METRICS, MOST_DRAFTS
from reports.svg import Plot
from reports.tables import DASH
from reports.verdict_page.matrix import CellRow
from reports.verdict_page.words import Effect, effect
from reports.waterfall import draw_waterfall

NEEDED = ("tpot_pooled_ms", "al", "al_emitted")
TERMS = ("acceptance length", "tokens cut", "time of a verification")
MOST_FIGURES = 4
POSITIONS = tuple(f"c_{draft}" for draft in range(MOST_DRAFTS))


@dataclass(frozen=True, kw_only=True)
class DraftRow:
    """One cell with drafts: acceptance in both arms, and the terms of its change."""

    row: CellRow
    mtp: str
    length: Effect | None
    positions: list[tuple[str, Effect]]  # c_0, c_1, …: share accepted of those that were reached
    terms: list[str]  # mean of each of TERMS and of the total, with its interval
    pairs: int
    note: str


@dataclass(frozen=True, kw_only=True)
class Drafts:
    """All that the template needs."""

    rows: list[DraftRow]
    plots: list[Plot]
    terms: tuple[str, ...]
    forced: bool
    silent: list[int]  # numbers of cells that drafted, of which nothing is known


def drafts(comparison: Comparison, rows: Sequence[CellRow]) -> Drafts | None:
    """None when no cell of either arm was asked to draft."""
    found: list[DraftRow] = []
    plots: list[Plot] = []
    silent: list[int] = []
    forced = False
    for row in rows:
        cells = [side.get(row.cell_id) for side in (comparison.baseline, comparison.candidate)]
        asked = next((cell.requested for cell in cells if cell and cell.requested.get("mtp")), None)
        if asked is None:
            continue
        forced = forced or asked.get("mtp_mode") == "forced"
        ladder = _ladder(*cells)
        made = _draft_row(row, asked, ladder)
        if made.length is None and not made.pairs:
            silent.append(row.number)
            continue
        found.append(made)
        if len(plots) < MOST_FIGURES:
            plot = draw_waterfall(ladder, prefix=f"split{row.number}")
            if plot is not None:
                plots.append(
                    Plot(title=f"Cell {row.number}: what changed TPOT", svg=plot.svg, legend=plot.legend)
                )
    if not found and not silent:
        return None
    return Drafts(rows=found, plots=plots, terms=TERMS, forced=forced, silent=silent)


def _draft_row(row: CellRow, asked: Mapping[str, object], ladder: Ladder) -> DraftRow:
    by_metric = {one.rule.name: one for one in row.findings if one.rule is not None}
    lines = [*ladder.contributions, ladder.total]
    return DraftRow(
        row=row,
        mtp=str(asked["mtp"]) + (" forced" if asked.get("mtp_mode") == "forced" else ""),
        length=effect(by_metric["al"]) if "al" in by_metric else None,
        positions=[(name, effect(by_metric[name])) for name in POSITIONS if name in by_metric],
        terms=[_term(one) for one in lines],
        pairs=ladder.total.n,
        note="" if ladder.total.n else f"no pair of launches has {', '.join(NEEDED)} in both arms",
    )


def _term(one: Contribution) -> str:
    return mean_text(one).removeprefix("mean ") or DASH


def _ladder(baseline: ArmCell | None, candidate: ArmCell | None) -> Ladder:
    """The terms of the change of TPOT by pair; empty where an arm has no such numbers."""
    sides = [
        {one.pair: one for one in cell.launches if _usable(one)} if cell else {}
        for cell in (baseline, candidate)
    ]
    both = sorted(sides[0].keys() & sides[1].keys())
    values = {pair: _terms(sides[0][pair], sides[1][pair]) for pair in both}

    def line(place: int, switch: str) -> Contribution:
        return Contribution(
            switch=switch,
            before="baseline",
            after="candidate",
            by_round={pair: terms[place] for pair, terms in values.items()},
            rounds=len(both),
        )

    return Ladder(
        metric="tpot_pooled_ms",
        title=METRICS["tpot_pooled_ms"].name,
        contributions=[line(place, name) for place, name in enumerate(TERMS)],
        total=line(len(TERMS), TOTAL),
    )


def _usable(one: LaunchNumbers) -> bool:
    return one.cause is None and all(one.values.get(name, 0.0) > 0 for name in NEEDED)


def _terms(baseline: LaunchNumbers, candidate: LaunchNumbers) -> tuple[float, float, float, float]:
    """Acceptance, cut, cost, total; the first three add up to the last."""
    tpot, length, emitted = (
        math.log(candidate.values[name]) - math.log(baseline.values[name]) for name in NEEDED
    )
    return length, emitted - length, -(tpot + emitted), -tpot
