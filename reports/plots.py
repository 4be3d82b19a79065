"""Which curves a run has: throughput, TPOT, TTFT against load; throughput against interactivity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.records import Record
from reports.load import NOT_SET, as_word, flatten
from reports.svg import Plot, Point, Series, draw
from reports.tables import ARROWS, plain

MAX_PANELS = 8  # groups that get curves; the table has all of them
CURVES = (
    ("out_tps", "Output throughput"),
    ("tpot_pooled_ms", "TPOT, pooled"),
    ("ttft_p50_ms", "TTFT, median"),
)
SCHEDULED = {"ttft_p50_ms": ("ttft_sched_p50_ms", "TTFT from schedule, median")}  # of an open loop
LOADS = {"concurrency": "concurrency (requests in flight)", "request_rate": "request rate (requests/s)"}
# settings of an arm tell lines of one drawing apart; everything else that varies gets a drawing of its own
LINE_KEYS = ("path", "kv_dtype", "index_dtype", "threads", "engine.", "options.", "options", "debug.")


@dataclass(frozen=True)
class Panel:
    """All curves of the cells that differ in arm, cache dtype and load only."""

    title: str
    plots: list[Plot]


@dataclass(frozen=True)
class _Measured:
    """A record with numbers, its flat request and its load."""

    record: Record
    flat: Mapping[str, Any]
    axis: str  # a key of LOADS
    load: float

    def metric(self, name: str) -> float | None:
        found = self.record.metrics.get(name)
        return found.value if found else None


def draw_panels(records: Sequence[Record]) -> tuple[list[Panel], str]:
    """Panels with curves and a sentence on what has none ("" when everything is drawn)."""
    usable = [one for one in map(_measured, records) if one is not None]
    varying = _varying_keys(usable)
    line_keys = [key for key in varying if key.startswith(LINE_KEYS)]
    facets: dict[tuple[str, str], list[_Measured]] = {}
    for one in usable:
        title = _describe(one.flat, [key for key in varying if key not in line_keys])
        facets.setdefault((title, one.axis), []).append(one)
    panels = []
    for index, ((title, axis), group) in enumerate(list(facets.items())[:MAX_PANELS]):
        plots = _draw_group(group, line_keys, axis=axis, prefix=f"panel{index}")
        if plots:
            panels.append(Panel(title=title, plots=plots))
    notes = []
    if len(facets) > MAX_PANELS:
        notes.append(f"Curves are drawn for the first {MAX_PANELS} of {len(facets)} groups of cells")
    if len(usable) < len(records):
        notes.append(
            f"{len(records) - len(usable):,} of {len(records):,} cells have no numbers or no fixed load"
        )
    return panels, ". ".join(f"{note}; the table has all of them" for note in notes)


def _measured(record: Record) -> _Measured | None:
    flat = flatten(record.requested)
    axis = "request_rate" if flat.get("request_rate") is not None else "concurrency"
    load = flat.get(axis)
    if not record.state.has_numbers or not isinstance(load, int | float) or load <= 0:
        return None
    return _Measured(record, flat, axis, load)


def _varying_keys(usable: Sequence[_Measured]) -> list[str]:
    keys = sorted({key for one in usable for key in one.flat} - set(LOADS))
    return [key for key in keys if len({as_word(one.flat.get(key)) for one in usable}) > 1]


def _describe(flat: Mapping[str, Any], keys: Sequence[str]) -> str:
    return ", ".join(f"{key}={plain(flat.get(key, NOT_SET))}" for key in keys)


def _by_line(group: Sequence[_Measured], line_keys: Sequence[str]) -> dict[str, list[_Measured]]:
    """Lines by name: the path, then the settings that differ between cells of this same path."""
    by_path: dict[str, list[_Measured]] = {}
    for one in group:
        by_path.setdefault(plain(one.flat.get("path", NOT_SET)), []).append(one)
    lines: dict[str, list[_Measured]] = {}
    for path, members in by_path.items():
        own = set(_varying_keys(members))
        # the cache dtype is named as soon as any two lines differ in it
        keys = [key for key in line_keys if key in own or key == "kv_dtype"]
        for one in members:
            name = " · ".join([path, *(f"{key}={plain(one.flat.get(key, NOT_SET))}" for key in keys)])
            lines.setdefault(name, []).append(one)
    return lines


def _draw_group(
    group: Sequence[_Measured], line_keys: Sequence[str], *, axis: str, prefix: str
) -> list[Plot]:
    lines = _by_line(group, line_keys)
    plots = []
    for metric, title in CURVES:
        if axis == "request_rate":
            metric, title = SCHEDULED.get(metric, (metric, title))
        unit, better = _unit(group, metric)
        points = {
            name: [
                Point(one.load, value, one.load)
                for one in members
                if (value := one.metric(metric)) is not None
            ]
            for name, members in lines.items()
        }
        plot = draw(
            [Series(name, found) for name, found in points.items() if found],
            title=f"{title} against {axis.replace('_', ' ')}",
            x_label=LOADS[axis],
            y_label=f"{title} ({unit}) {ARROWS[better]}",
            prefix=f"{prefix}-{metric}",
        )
        plots.append(plot)
    plots.append(_interactivity(lines, unit=_unit(group, "out_tps")[0], prefix=f"{prefix}-interactivity"))
    return [plot for plot in plots if plot is not None]


def _interactivity(lines: Mapping[str, Sequence[_Measured]], *, unit: str, prefix: str) -> Plot | None:
    series = []
    for name, members in lines.items():
        points = []
        for one in members:
            interactivity, throughput = one.metric("interactivity"), one.metric("out_tps")
            if interactivity is not None and throughput is not None:
                points.append(Point(interactivity, throughput, one.load))
        if points:
            series.append(Series(name, points))
    return draw(
        series,
        title="Output throughput against interactivity, labelled with the load",
        x_label="interactivity = 1000 / TPOT (tok/s per user) ↑",
        y_label=f"Output throughput ({unit}) ↑",
        prefix=prefix,
        label_points=True,
    )


def _unit(group: Sequence[_Measured], metric: str) -> tuple[str, str]:
    found = next((one.record.metrics[metric] for one in group if metric in one.record.metrics), None)
    return (found.unit, found.better) if found else ("", "none")
