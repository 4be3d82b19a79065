"""Line charts as inline SVG: deterministic, no names in the drawing, coloured by the page's style sheet.

Series are told apart by marker shape, letter and colour; their names stand in the page's own legend, where
any text is safe. No pyplot state: each picture is a `Figure` with the SVG canvas.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

COLOURS = ("#2a7fd4", "#d9730d", "#1a9a6c", "#c0509e", "#7b68d9", "#8a7a00", "#c2483d", "#5f7f8f")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
GLYPHS = ("●", "■", "▲", "◆", "▼", "✚", "✖", "★")
INK, GRID = "#010203", "#040506"  # stand-ins that become currentColor and the page's grid colour
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "report",
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.size": 10,
}


@dataclass(frozen=True)
class Point:
    """One launch of one cell: x and y of a curve, and the load that labels it."""

    x: float
    y: float
    load: float


@dataclass(frozen=True)
class Series:
    """One line: a path at one KV dtype, and whatever else tells it from the others."""

    name: str
    points: list[Point]


@dataclass(frozen=True)
class Legend:
    """How a series is drawn, for the page's legend."""

    letter: str
    glyph: str
    colour: int
    name: str


@dataclass(frozen=True)
class Plot:
    """A drawn figure with its caption and legend."""

    title: str
    svg: str
    legend: list[Legend]


def _centre(points: Sequence[Point]) -> list[Point]:
    """The line of a series: the median over launches at each load, in order of load."""
    by_load: dict[float, list[Point]] = {}
    for point in points:
        by_load.setdefault(point.load, []).append(point)
    return [
        Point(median(p.x for p in group), median(p.y for p in group), load)
        for load, group in sorted(by_load.items())
    ]


def draw(
    series: Sequence[Series],
    *,
    title: str,
    x_label: str,
    y_label: str,
    prefix: str,
    label_points: bool = False,
) -> Plot | None:
    """One figure, or None when no series has a point."""
    if not series:
        return None
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.6, 3.6))
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        for index, one in enumerate(series):
            style = index % len(COLOURS)
            line = _centre(one.points)
            axes.plot([p.x for p in line], [p.y for p in line], color=COLOURS[style], linewidth=1.6, zorder=2)
            axes.plot(
                [p.x for p in one.points],
                [p.y for p in one.points],
                color=COLOURS[style],
                linestyle="none",
                marker=MARKERS[style],
                markersize=6,
                zorder=3,
            )
            end = line[-1]
            axes.annotate(
                letter(index),
                (end.x, end.y),
                xytext=(7, 2),
                textcoords="offset points",
                color=INK,
                weight="bold",
            )
            for point in line if label_points else ():
                axes.annotate(
                    f"{point.load:g}",
                    (point.x, point.y),
                    xytext=(-3, 7),
                    textcoords="offset points",
                    color=INK,
                    ha="right",
                    size=8,
                )
        if not label_points:
            load_axis(axes, sorted({p.x for one in series for p in one.points}))
        axes.set_ylim(bottom=0)
        dress(axes, x_label=x_label, y_label=y_label)
        svg = to_inline_svg(figure, prefix=prefix, label=title)
    legend = [
        Legend(letter(i), GLYPHS[i % len(GLYPHS)], i % len(COLOURS), one.name) for i, one in enumerate(series)
    ]
    return Plot(title=title, svg=svg, legend=legend)


def letter(index: int) -> str:
    """A, B, … Z, AA, AB, …: the name of a series inside a drawing."""
    text = ""
    index += 1
    while index:
        index, rest = divmod(index - 1, 26)
        text = chr(ord("A") + rest) + text
    return text


def load_axis(axes: Axes, loads: Sequence[float]) -> None:
    axes.set_xscale("log", base=2)
    step = -(-len(loads) // 9)  # at most nine labels fit
    axes.set_xticks(loads[::step], [f"{load:g}" for load in loads[::step]])
    axes.xaxis.set_minor_locator(NullLocator())
    if len(loads) == 1:
        axes.set_xlim(loads[0] / 2, loads[0] * 2)


def dress(axes: Axes, *, x_label: str, y_label: str) -> None:
    """What all charts look like: labels, grid, two spines, in colours that the page replaces."""
    axes.margins(x=0.08)
    axes.set_xlabel(x_label, color=INK)
    axes.set_ylabel(y_label, color=INK)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.tick_params(colors=INK)
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)


def to_inline_svg(figure: Figure, *, prefix: str, label: str) -> str:
    """A drawn figure as an element of a page; call it under `STYLE`."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None}, bbox_inches="tight")
    return inline_svg(buffer.getvalue(), prefix=prefix, label=label)


def inline_svg(text: str, *, prefix: str, label: str) -> str:
    """matplotlib's file as an element of a page: ids made unique, size and colours left to the page."""
    text = text[text.index("<svg") :]
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"\s*<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->\s*", "", text, flags=re.DOTALL)
    opening = f'<svg \\1 role="img" aria-label="{html.escape(label)}">'
    text = re.sub(r'<svg [^>]*?(viewBox="[^"]*")[^>]*>', opening, text, count=1)
    text = re.sub(r"font-family: [^;\"]*; ?", "", text)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'xlink:href="#', f'href="#{prefix}-', text)
    text = text.replace("url(#", f"url(#{prefix}-")
    text = text.replace(INK, "currentColor").replace(GRID, "var(--grid, #cccccc)")
    for index, colour in enumerate(COLOURS):
        text = text.replace(colour, f"var(--series-{index}, {colour})")
    return text.strip()
