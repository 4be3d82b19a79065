"""Which curves a run has: throughput, TPOT, TTFT against concurrency; throughput against interactivity."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Panel:
    """All curves of the cells that differ in path, dtype of the cache and load only."""

    title: str
    plots: list[Plot]


def draw_panels(records: Sequence[Record]) -> tuple[list[Panel], str]:
    """Panels with curves and a sentence on what has none ("" when everything is drawn)."""
    usable = [
        record
        for record in records
        if record.state.has_numbers and isinstance(flatten(record.requested).get("concurrency"), int)
    ]
    varying = _varying_keys(usable)
    facets: dict[str, list[Record]] = {}
    for record in usable:
        facets.setdefault(_describe(record, varying - {"path", "kv_dtype"}), []).append(record)
    panels = []
    for index, (title, group) in enumerate(list(facets.items())[:MAX_PANELS]):
        plots = _draw_group(group, varying & {"path", "kv_dtype"}, prefix=f"panel{index}")
        if plots:
            panels.append(Panel(title=title, plots=plots))
    notes = []
    if len(facets) > MAX_PANELS:
        notes.append(f"Curves are drawn for the first {MAX_PANELS} of {len(facets)} groups of cells")
    if len(usable) < len(records):
        left_out = len(records) - len(usable)
        notes.append(f"{left_out:,} of {len(records):,} cells have no numbers or no fixed concurrency")
    return panels, ". ".join(f"{note}; the table has all of them" for note in notes)


def _varying_keys(records: Sequence[Record]) -> set[str]:
    seen: dict[str, set[object]] = {}
    flats = [flatten(record.requested) for record in records]
    for key in {key for flat in flats for key in flat} - {"concurrency"}:
        seen[key] = {as_word(flat.get(key)) for flat in flats}
    return {key for key, values in seen.items() if len(values) > 1}


def _describe(record: Record, keys: set[str]) -> str:
    flat = flatten(record.requested)
    return ", ".join(f"{key}={plain(flat.get(key, NOT_SET))}" for key in sorted(keys))


def _draw_group(records: Sequence[Record], keys: set[str], prefix: str) -> list[Plot]:
    by_name: dict[str, list[Record]] = {}
    for record in records:
        flat = flatten(record.requested)
        name = plain(flat.get("path", NOT_SET))
        if "kv_dtype" in keys:
            name += f" · kv_dtype={plain(flat.get('kv_dtype', NOT_SET))}"
        by_name.setdefault(name, []).append(record)
    plots = []
    for metric, title in CURVES:
        series = [Series(name, _points(group, metric)) for name, group in by_name.items()]
        unit, better = _unit(records, metric)
        plots.append(
            draw(
                [one for one in series if one.points],
                title=f"{title} against concurrency",
                x_label="concurrency (requests in flight)",
                y_label=f"{title} ({unit}) {ARROWS[better]}",
                prefix=f"{prefix}-{metric}",
            )
        )
    series = [Series(name, _interactivity_points(group)) for name, group in by_name.items()]
    unit, _ = _unit(records, "out_tps")
    plots.append(
        draw(
            [one for one in series if one.points],
            title="Output throughput against interactivity",
            x_label="interactivity = 1000 / TPOT (tok/s per user) ↑",
            y_label=f"Output throughput ({unit}) ↑",
            prefix=f"{prefix}-pareto",
            label_points=True,
        )
    )
    return [plot for plot in plots if plot is not None]


def _unit(records: Sequence[Record], metric: str) -> tuple[str, str]:
    found = next((record.metrics[metric] for record in records if metric in record.metrics), None)
    return (found.unit, found.better) if found else ("", "none")


def _value(record: Record, metric: str) -> float | None:
    found = record.metrics.get(metric)
    return found.value if found else None


def _points(records: Sequence[Record], metric: str) -> list[Point]:
    points = []
    for record in records:
        value = _value(record, metric)
        if value is not None:
            load = flatten(record.requested)["concurrency"]
            points.append(Point(x=load, y=value, concurrency=load))
    return points


def _interactivity_points(records: Sequence[Record]) -> list[Point]:
    points = []
    for record in records:
        tpot, throughput = _value(record, "tpot_pooled_ms"), _value(record, "out_tps")
        if tpot and throughput is not None:
            load = flatten(record.requested)["concurrency"]
            points.append(Point(x=1000 / tpot, y=throughput, concurrency=load))
    return points
