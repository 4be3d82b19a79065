"""Curves of both arms with intervals: throughput against interactivity, TPOT and TTFT against load."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from reports.compare.cells import ArmCell
from reports.compare.finding import Comparison
from reports.compare.power import t_quantile
from reports.load import NOT_SET, as_word, flatten
from reports.plots import LOADS, Panel
from reports.svg import (
    COLOURS,
    GLYPHS,
    INK,
    MARKERS,
    STYLE,
    Legend,
    Plot,
    dress,
    letter,
    load_axis,
    to_inline_svg,
)
from reports.tables import plain

ALPHA = 0.05  # of each end of an interval
MOST_PANELS = 4
MOST_MARKS = 40  # of a line
MOST_LABELS = 12
RATES = ("out_tps_per_gpu", "out_tps")  # the first that there is
TPOTS = {"tpot_pooled_ms": "TPOT, pooled", "tpot_mean_ms": "TPOT, mean of requests"}
TTFTS = {"ttft_p50_ms": "TTFT, median", "ttft_mean_ms": "TTFT, mean"}
SCHEDULED = {"ttft_sched_p50_ms": "TTFT from schedule, median"}  # of an open loop
RATE_WORDS = {
    "out_tps_per_gpu": ("Throughput per GPU", "tok/s/gpu"),
    "out_tps": ("Output throughput", "tok/s"),
}


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A mean over launches with its interval; both ends are the mean where there is one launch."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Mark:
    """One cell of one arm in a drawing."""

    load: float
    x: Spread
    y: Spread


def spread(values: Sequence[float]) -> Spread | None:
    """Geometric mean with a t interval of the logarithms; None without a value above 0."""
    logs = np.log([value for value in values if value > 0])
    if not len(logs) or len(logs) < len(values):
        return None
    mean = float(logs.mean())
    half = 0.0
    if len(logs) > 1:
        half = t_quantile(ALPHA, len(logs) - 1) * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    return Spread(mean=math.exp(mean), low=math.exp(mean - half), high=math.exp(min(mean + half, 700.0)))


def draw_curves(
    comparison: Comparison, names: tuple[str, str], ranks: Mapping[str, int]
) -> tuple[list[Panel], str]:
    """Panels of cells that differ in load alone, and a sentence on what is not drawn.

    `ranks`: of the verdict of each cell, 0 is the worst; the groups with the worst cells come first.
    """
    groups = sorted(
        _groups((comparison.baseline, comparison.candidate)).items(),
        key=lambda group: min(ranks.get(cell.cell_id, len(ranks)) for arm in group[1] for _, cell in arm),
    )
    panels: list[Panel] = []
    for (title, axis), arms in groups:
        if len(panels) < MOST_PANELS:
            plots = _plots(arms, names, axis=axis, prefix=f"curve{len(panels)}")
            panels += [Panel(title=title, plots=plots)] if plots else []
    notes = []
    if len(groups) > len(panels):
        notes.append(
            f"drawn are {len(panels)} of {len(groups)} groups of cells, those with the worst verdicts"
        )
    if any(len(arm) > MOST_MARKS for _, arms in groups[:MOST_PANELS] for arm in arms):
        notes.append(f"at most {MOST_MARKS} loads, evenly chosen, are drawn of a group")
    return panels, "; ".join(notes)


_Arms = tuple[list[tuple[float, ArmCell]], list[tuple[float, ArmCell]]]


def _groups(sides: tuple[Mapping[str, ArmCell], Mapping[str, ArmCell]]) -> dict[tuple[str, str], _Arms]:
    """Cells by everything that was requested but path and load."""
    flats = [[(flatten(cell.requested), cell) for cell in side.values()] for side in sides]
    everything = [flat for side in flats for flat, _ in side]
    keys = sorted({key for flat in everything for key in flat if not key.startswith(("path", "options"))})
    varying = [
        key for key in keys if key not in LOADS and len({as_word(flat.get(key)) for flat in everything}) > 1
    ]
    groups: dict[tuple[str, str], _Arms] = {}
    for side, cells in enumerate(flats):
        for flat, cell in cells:
            axis = "request_rate" if flat.get("request_rate") is not None else "concurrency"
            load = flat.get(axis)
            if isinstance(load, int | float) and not isinstance(load, bool) and load > 0:
                title = ", ".join(f"{key}={plain(flat.get(key, NOT_SET))}" for key in varying)
                groups.setdefault((title, axis), ([], []))[side].append((load, cell))
    return groups


def _plots(arms: _Arms, names: tuple[str, str], *, axis: str, prefix: str) -> list[Plot]:
    measured = tuple([(load, _values(cell)) for load, cell in arm] for arm in arms)
    rate = next((name for name in RATES if _has(measured, name)), RATES[1])
    words, unit = RATE_WORDS[rate]
    against = [_marks(arm, "interactivity", rate) for arm in measured]
    plots = []
    if all(against):
        plots.append(
            _draw(
                against,
                names,
                title=f"{words} against interactivity, labelled with the load",
                x_label="interactivity = 1000 / TPOT (tok/s per user) ↑",
                y_label=f"{words} ({unit}) ↑",
                prefix=f"{prefix}-interactivity",
            )
        )
    loads = {} if all(against) else {rate: (words, f"{unit}) ↑")}
    for choices in (TPOTS, SCHEDULED if axis == "request_rate" else TTFTS):
        found = next((name for name in choices if _has(measured, name)), None)
        loads |= {found: (choices[found], "ms) ↓")} if found else {}
    for metric, (title, end) in loads.items():
        plots.append(
            _draw(
                [_marks(arm, None, metric) for arm in measured],
                names,
                title=f"{title} against {axis.replace('_', ' ')}",
                x_label=LOADS[axis],
                y_label=f"{title} ({end}",
                prefix=f"{prefix}-{metric}",
                loads=True,
            )
        )
    return [plot for plot in plots if plot is not None]


_Launches = list[dict[str, float]]


def _values(cell: ArmCell) -> _Launches:
    """What the usable launches measured; what follows from it is added where a tool does not give it."""
    gpus = cell.requested.get("gpus")
    found = []
    for one in cell.launches:
        if one.cause is not None:
            continue
        values = dict(one.values)
        if isinstance(gpus, int) and gpus > 0 and "out_tps" in values:
            values.setdefault("out_tps_per_gpu", values["out_tps"] / gpus)
        tpot = next((values[name] for name in TPOTS if values.get(name, 0.0) > 0), None)
        if tpot is not None:
            values.setdefault("interactivity", 1000.0 / tpot)
        found.append(values)
    return found


def _has(measured: Sequence[Sequence[tuple[float, _Launches]]], metric: str) -> bool:
    return any(metric in values for arm in measured for _, launches in arm for values in launches)


def _marks(arm: Sequence[tuple[float, _Launches]], x: str | None, y: str) -> list[Mark]:
    """`x` None: the load itself."""
    marks = []
    ordered = sorted(arm, key=lambda entry: entry[0])
    chosen = np.unique(np.linspace(0, len(ordered) - 1, min(len(ordered), MOST_MARKS)).round().astype(int))
    for load, used in (ordered[place] for place in chosen):
        at = Spread(mean=load, low=load, high=load) if x is None else spread([v[x] for v in used if x in v])
        up = spread([values[y] for values in used if y in values])
        if at is not None and up is not None:
            marks.append(Mark(load=load, x=at, y=up))
    return marks


def _draw(
    arms: Sequence[Sequence[Mark]],
    names: tuple[str, str],
    *,
    title: str,
    x_label: str,
    y_label: str,
    prefix: str,
    loads: bool = False,
) -> Plot | None:
    """None when neither arm has a mark."""
    if not any(arms):
        return None
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.6, 3.6))
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        for index, marks in enumerate(arms):
            if marks:
                _line(axes, index, marks, label=not loads)
        if loads:
            load_axis(axes, sorted({mark.load for marks in arms for mark in marks}))
        axes.set_ylim(0, _top([mark.y for marks in arms for mark in marks]))
        if not loads:
            axes.set_xlim(0, _top([mark.x for marks in arms for mark in marks]))
        dress(axes, x_label=x_label, y_label=y_label)
        svg = to_inline_svg(figure, prefix=prefix, label=title)
    legend = [
        Legend(letter(index), GLYPHS[index], index, f"{role}: {name}")
        for index, (role, name) in enumerate(zip(("baseline", "candidate"), names, strict=True))
        if arms[index]
    ]
    return Plot(title=title, svg=svg, legend=legend)


def _top(spreads: Sequence[Spread]) -> float:
    """Room for all means; an interval from two launches may be cut."""
    highest = max(one.mean for one in spreads)
    return min(1.1 * max(one.high for one in spreads), 2.0 * highest)


def _line(axes: Axes, index: int, marks: Sequence[Mark], *, label: bool) -> None:
    xs, ys = [mark.x for mark in marks], [mark.y for mark in marks]
    axes.errorbar(
        [one.mean for one in xs],
        [one.mean for one in ys],
        xerr=[[one.mean - one.low for one in xs], [one.high - one.mean for one in xs]],
        yerr=[[one.mean - one.low for one in ys], [one.high - one.mean for one in ys]],
        color=COLOURS[index],
        linestyle="-" if index else "--",
        marker=MARKERS[index],
        markersize=6,
        linewidth=1.5,
        elinewidth=1.0,
        capsize=3,
    )
    end = marks[-1]
    axes.annotate(
        letter(index),
        (end.x.mean, end.y.mean),
        xytext=(7, 2 if index else -9),
        textcoords="offset points",
        color=INK,
        weight="bold",
    )
    for mark in marks[:: -(-len(marks) // MOST_LABELS)] if label else ():
        axes.annotate(
            f"{mark.load:g}",
            (mark.x.mean, mark.y.mean),
            xytext=(-3, 7 if index else -11),
            textcoords="offset points",
            color=INK,
            ha="right",
            size=8,
        )
