"""Small drawings inside a cell's section: how the requests of both arms were distributed, in few numbers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from harness.requests_table import FILE_NAME, SCHEMA, read_table
from reports.tables import number
from reports.verdict_page.inputs import Compared

MOST_QUANTILES = 64
FEW_QUANTILES = 24  # of a page with more than MANY_CELLS drawings
MANY_CELLS = 100
WIDTH, HEIGHT = 180, 54
SKETCHED = {"ttft_ms": "TTFT", "tpot_ms": "TPOT"}
Quantiles = Mapping[tuple[str, str], Sequence[float]]  # (cell_id, column) → ascending values, ms


@dataclass(frozen=True, kw_only=True)
class Sketch:
    """Empirical distributions of one latency: share of requests (up) by milliseconds (right)."""

    title: str
    lines: list[tuple[str, str]]  # points of an SVG polyline, how it is drawn
    low: str
    high: str


def load_quantiles(data: Compared, cells: Collection[str]) -> tuple[Quantiles, Quantiles]:
    """Quantiles of both arms over the ok requests of the measured phase; empty without a request table.

    Raises RecordError for a damaged one.
    """
    baseline, candidate = (
        _quantiles(arm.folder / FILE_NAME, {one.launch_id for one in arm.records}, cells) for arm in data.arms
    )
    return baseline, candidate


def _quantiles(path: Path, launches: Collection[str], cells: Collection[str]) -> Quantiles:
    if not path.exists() or not cells:
        return {}
    columns = ["launch_id", "cell_id", "phase", "status", *SKETCHED]
    table = read_table(path, pa.schema([SCHEMA.field(name) for name in columns]))
    used = pc.and_(pc.equal(table["status"], "ok"), pc.equal(table["phase"], "measured"))
    rows = table.filter(used).to_pandas()
    rows = rows[rows["launch_id"].isin(list(launches)) & rows["cell_id"].isin(list(cells))]
    most = MOST_QUANTILES if len(cells) <= MANY_CELLS else FEW_QUANTILES
    found: dict[tuple[str, str], Sequence[float]] = {}
    for cell_id, group in rows.groupby("cell_id", dropna=False, sort=True):
        for column in SKETCHED:
            values = group[column].to_numpy(dtype=np.float64)
            values = values[np.isfinite(values)]
            if len(values):
                shares = np.linspace(0.0, 1.0, min(len(values), most))
                found[str(cell_id), column] = [float(value) for value in np.quantile(values, shares)]
    return found


def sketches(cell_id: str, quantiles: tuple[Quantiles, Quantiles]) -> list[Sketch]:
    """One drawing per latency that either arm has."""
    found = []
    for column, title in SKETCHED.items():
        arms = [side.get((cell_id, column), ()) for side in quantiles]
        if any(arms):
            found.append(_sketch(title, arms))
    return found


def _sketch(title: str, arms: Sequence[Sequence[float]]) -> Sketch:
    values = [value for arm in arms for value in arm]
    low, high = min(values), max(values)
    return Sketch(
        title=title,
        lines=[
            (_points(arm, low, high), style) for arm, style in zip(arms, ("base", "cand"), strict=True) if arm
        ],
        low=number(low),
        high=number(high),
    )


def _points(values: Sequence[float], low: float, high: float) -> str:
    """Whole units of the drawing are enough at this size."""
    span = (high - low) or 1.0
    steps = max(len(values) - 1, 1)
    return " ".join(
        f"{round((value - low) / span * WIDTH)},{round(HEIGHT * (1 - place / steps))}"
        for place, value in enumerate(values)
    )
