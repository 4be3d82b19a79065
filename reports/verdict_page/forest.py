"""The forest plot: mean loss per cell with interval, shaded margin, hatched A/A floor, a dot per pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from reports.compare.estimate import Estimate
from reports.compare.finding import Finding
from reports.compare.words import Verdict
from reports.gate.summary import SEVERITY
from reports.svg import COLOURS, GRID, INK, STYLE, Legend, Plot, dress, to_inline_svg
from reports.verdict_page.matrix import CellRow, Column
from reports.verdict_page.words import loss_percent

MOST_FIGURES = 4
MOST_ROWS = 40
_STYLES = {  # marker, place in COLOURS, filled, glyph of the legend
    Verdict.PASS: ("o", 2, True, "●"),
    Verdict.IMPROVED: ("^", 0, True, "▲"),
    Verdict.FAIL: ("X", 6, True, "✖"),
    Verdict.INCONCLUSIVE: ("o", 7, False, "○"),
    Verdict.INVALID: ("s", 5, False, "□"),
}
_OTHER = ("D", 7, False, "◇")


@dataclass(frozen=True, kw_only=True)
class Forest:
    """Figures, and what is not in them."""

    plots: list[Plot]
    left_out: list[str]


@dataclass(frozen=True)
class _Line:
    number: int
    name: str
    finding: Finding
    estimate: Estimate


def forest(columns: Sequence[Column], rows: Sequence[CellRow]) -> Forest:
    """One figure per gated metric; without a gate, of the first columns."""
    chosen = [one for one in columns if one.gated] or list(columns)
    plots, left_out = [], []
    for column in chosen[:MOST_FIGURES]:
        lines = _lines(column, rows)
        shown = _worst(lines)
        if len(shown) < len(lines):
            left_out.append(
                f"{column.title}: {len(shown)} of {len(lines)} cells are drawn: the worst verdicts and the"
                " largest losses"
            )
        if shown:
            plots.append(_draw(column, shown))
    if len(chosen) > MOST_FIGURES:
        left_out.append(f"{len(chosen) - MOST_FIGURES} further gated metrics are in the decision matrix only")
    return Forest(plots=plots, left_out=left_out)


def _lines(column: Column, rows: Sequence[CellRow]) -> list[_Line]:
    return [
        _Line(row.number, row.name, one, one.estimate)
        for row in rows
        for one in row.findings
        if one.estimate is not None and one.rule is not None and one.rule.name == column.name
    ]


def _worst(lines: Sequence[_Line]) -> list[_Line]:
    """All, or what fails and the largest losses, in the order of the matrix."""

    def rank(line: _Line) -> tuple[int, float]:
        return SEVERITY.index(line.finding.verdict), -(loss_percent(line.finding) or 0.0)

    return sorted(sorted(lines, key=rank)[:MOST_ROWS], key=lambda line: line.number)


def _draw(column: Column, lines: Sequence[_Line]) -> Plot:
    title = f"{column.title}: loss of the candidate per cell"
    with matplotlib.rc_context(STYLE | {"hatch.linewidth": 0.4}):
        figure = Figure(figsize=(8.6, 1.2 + 0.24 * len(lines)))
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        edge = _edge(lines)
        upward = list(reversed(lines))
        _draw_margins(axes, upward, edge)
        for place, line in enumerate(upward):
            _draw_line(axes, place, line, edge)
        axes.axvline(0, color=INK, linewidth=0.8, zorder=1)
        dress(axes, x_label="loss (%): right of 0 the candidate is worse", y_label="")
        axes.set_yticks(range(len(lines)), [_label(line) for line in upward])
        axes.set_xlim(-edge, edge)
        axes.set_ylim(-0.7, len(lines) - 0.3)
        svg = to_inline_svg(figure, prefix=f"forest-{column.name}", label=title)
    words = [word for word in SEVERITY if any(line.finding.verdict is word for line in lines)]
    return Plot(title=title, svg=svg, legend=[_legend(word) for word in words])


def _legend(word: Verdict) -> Legend:
    _, colour, _, glyph = _STYLES.get(word, _OTHER)
    return Legend("", glyph, colour, str(word))


def _edge(lines: Sequence[_Line]) -> float:
    """Half the width of the drawing: all means and margins are inside, a very wide interval is cut."""
    inner = max(_percent(max(abs(one.estimate.mean), one.finding.margin or 0.0)) for one in lines)
    outer = max(_percent(max(abs(one.estimate.lo), abs(one.estimate.hi))) for one in lines)
    return max(min(1.1 * outer, 3.0 * inner), 1.25 * inner, 0.1)


def _percent(loss: float) -> float:
    return min(100.0 * loss, 1e4)


def _draw_margins(axes: Axes, lines: Sequence[_Line], edge: float) -> None:
    """Margin and noise floor of every line, behind it."""
    places = range(len(lines))
    halves = [min(_percent(line.finding.margin or 0.0), edge) for line in lines]
    axes.barh(
        places,
        [2 * h for h in halves],
        left=[-h for h in halves],
        height=0.8,
        color=GRID,
        alpha=0.55,
        zorder=0,
    )
    halves = [min(_percent(line.finding.floor or 0.0), edge) for line in lines]
    axes.barh(
        places, [2 * h for h in halves], left=[-h for h in halves], height=0.8, facecolor="none",
        edgecolor=INK, alpha=0.35, hatch="////", linewidth=0, zorder=0,
    )  # fmt: skip
    dots = [(_percent(loss), place - 0.25) for place in places for loss in lines[place].estimate.losses]
    axes.plot([x for x, _ in dots], [y for _, y in dots], ".", color=INK, markersize=2.5, alpha=0.7, zorder=3)


def _draw_line(axes: Axes, place: int, line: _Line, edge: float) -> None:
    found, one = line.estimate, line.finding
    marker, colour, filled, _ = _STYLES.get(one.verdict, _OTHER)
    low, high = _percent(found.lo), _percent(found.hi)
    axes.hlines(place, max(low, -edge), min(high, edge), color=COLOURS[colour], linewidth=1.8, zorder=2)
    for end, cut in ((low, low < -edge), (high, high > edge)):
        if cut:  # an arrow: the interval goes on
            side = -edge if end < 0 else edge
            axes.plot(side, place, marker="<" if end < 0 else ">", color=COLOURS[colour], clip_on=False)
    axes.plot(
        _percent(found.mean),
        place,
        marker=marker,
        color=COLOURS[colour],
        markerfacecolor=COLOURS[colour] if filled else "none",
        markersize=6,
        zorder=4,
    )


def _label(line: _Line) -> str:
    """Number and name of a cell in letters that every font has; the whole name is in the matrix."""
    name = "".join(c if " " <= c <= "~" else "?" for c in " ".join(line.name.split()))
    return f"{line.number}  {name if len(name) <= 34 else f'{name[:20]}..{name[-12:]}'}"
