"""Contributions of a ladder as a waterfall: each bar starts where the one before it ended.

Sign, direction and outline tell bars apart, colour only helps: filled is on one side of 0 in all rounds,
hollow and dashed is not distinguishable from 0. Whiskers go from the lowest round to the highest; the thick
line is the interval of the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure

from reports.attribution import TOTAL, Contribution, Ladder
from reports.svg import COLOURS, INK, STYLE, Legend, Plot, dress, letter, to_inline_svg
from reports.tables import signed

_FASTER, _SLOWER = 0, 1  # places in COLOURS
_WIDTH = 0.62
FEWEST_ROUNDS = 3  # for an interval in the drawing: with two it is wider than all bars


@dataclass(frozen=True)
class _Bar:
    contribution: Contribution
    letter: str
    start: float  # the level that it starts from


def draw_waterfall(ladder: Ladder, *, prefix: str) -> Plot | None:
    """One figure, or None when no switch has a value in any round."""
    bars, level = [], 0.0
    for index, one in enumerate(ladder.contributions):
        bars.append(_Bar(one, letter(index), level))
        level += one.middle or 0.0
    bars.append(_Bar(ladder.total, "Σ", 0.0))
    if all(bar.contribution.middle is None for bar in bars):
        return None
    title = f"{ladder.title[:1].upper()}{ladder.title[1:]}: what each switch contributes"
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.6, 3.6))
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        for place, bar in enumerate(bars):
            _draw_bar(axes, place, bar)
        _draw_levels(axes, bars)
        axes.set_xticks(range(len(bars)), [bar.letter for bar in bars])
        dress(
            axes, x_label="switch, in the order of the ladder; Σ is the total", y_label="ln of the speed-up ↑"
        )
        axes.margins(y=0.15)
        svg = to_inline_svg(figure, prefix=prefix, label=title)
    return Plot(title=title, svg=svg, legend=[_legend(bar) for bar in bars])


def _colour(contribution: Contribution) -> int:
    return _FASTER if (contribution.middle or 0.0) >= 0 else _SLOWER


def _draw_bar(axes: Axes, place: int, bar: _Bar) -> None:
    one = bar.contribution
    if one.middle is None or one.range is None:
        axes.annotate("—", (place, bar.start), color=INK, ha="center", va="center")
        return
    colour = COLOURS[_colour(one)]
    axes.bar(
        place,
        one.middle,
        bottom=bar.start,
        width=_WIDTH,
        facecolor=to_rgba(colour, 0.5) if one.clear else "none",
        edgecolor=colour,
        linestyle="-" if one.clear else (0, (4, 2)),
        linewidth=1.4,
        zorder=2,
    )
    if one.interval is not None and one.n >= FEWEST_ROUNDS:
        low, high = (bar.start + edge for edge in one.interval)
        axes.vlines(place, low, high, color=INK, linewidth=5, alpha=0.3, zorder=2.5)
    low, high = (bar.start + edge for edge in one.range)
    axes.vlines(place, low, high, color=INK, linewidth=1.2, zorder=3)
    for edge in (low, high):
        axes.hlines(edge, place - 0.09, place + 0.09, color=INK, linewidth=1.2, zorder=3)
    top = max(high, bar.start, bar.start + one.middle)
    axes.annotate(
        signed(one.middle),
        (place, top),
        xytext=(0, 4),
        textcoords="offset points",
        color=INK,
        ha="center",
        size=9,
    )


def _draw_levels(axes: Axes, bars: list[_Bar]) -> None:
    """The line of no difference, and from the end of each bar to the start of the next."""
    axes.axhline(0, color=INK, linewidth=0.8, zorder=1)
    for place, bar in enumerate(bars[:-1]):
        end = bar.start + (bar.contribution.middle or 0.0)
        axes.hlines(
            end, place + _WIDTH / 2, place + 1 - _WIDTH / 2, color=INK, linewidth=0.8, linestyle=":", zorder=1
        )
    axes.axvline(len(bars) - 1.5, color=INK, linewidth=0.8, linestyle=":", zorder=1)


def _legend(bar: _Bar) -> Legend:
    one = bar.contribution
    arms = f"{one.before} → {one.after}"
    name = arms if one.switch == TOTAL else f"{one.switch} ({arms})"
    if one.middle is None:
        glyph = "—"
    elif not one.clear:
        glyph = "○"
    else:
        glyph = "▲" if one.middle > 0 else "▼"
    return Legend(bar.letter, glyph, _colour(one), f"{name}: {one.words}")
