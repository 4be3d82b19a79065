"""A comparison of many cells stays one file that a browser and a CI artifact can take."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.records import RunInfo
from harness.requests_table import FILE_NAME
from reports.compare.compare import Arms, compare
from reports.compare.metric_table import METRICS
from reports.verdict_page import page
from reports.verdict_page.cells import drawn_cells
from reports.verdict_page.forest import Forest
from reports.verdict_page.inputs import ArmRun, Compared
from reports.verdict_page.matrix import decision_matrix
from reports.verdict_page.page import render_comparison
from reports.verdict_page.sketch import FEW_QUANTILES, MANY_CELLS, MOST_QUANTILES
from tests.reports.compare.arms import PR, cell, floor_for, noisy
from tests.reports.conftest import make_record, parse_page
from tests.reports.verdict_page.judged import judged

LOADS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
MEASURED = [name for name in METRICS if not name.startswith(("c_", "u_", "al", "draft"))]
RUN = RunInfo(
    run_id="run-1",
    command="harness",
    started_at="2026-01-01T12:00:00+00:00",
    harness_version="0.1.0",
    environment={"cpu": "Example CPU"},
    plan=[],
)


def grid(conditions: int) -> list[dict]:
    return [{"isl": 32 * (1 + place), "concurrency": load} for place in range(conditions) for load in LOADS]


def many_cells(conditions: int, pairs: int = 4):
    """A judged comparison of `conditions` × 10 cells and about 40 metrics, three cells slower."""
    asked = grid(conditions)
    values = noisy(100.0, 0.003, pairs, seed=0)
    sides = {}
    for arm in ("b", "c"):
        cells = []
        for place, requested in enumerate(asked):
            slower = 1.1 if arm == "c" and place in (1, 20, 33) else 1.0
            launches = [
                {
                    name: value * (slower if METRICS[name].better == "down" else 1 / slower)
                    for name in MEASURED
                }
                for value in (values if arm == "b" else values[::-1])
            ]
            name = f"GLM-5.2-NVFP4 fp8_ds_mla mtp=3 isl={requested['isl']} c={requested['concurrency']}"
            cells.append(cell(arm, launches, cell_id=f"{place:016x}", name=name, requested=requested))
        sides[arm] = {one.cell_id: one for one in cells}
    arms = Arms(baseline=sides["b"], candidate=sides["c"], interleaved=True)
    return judged(compare(arms, tier=PR, floor=floor_for(*sides["b"])))


def records_of(arm: str, conditions: int, pairs: int = 4):
    first = make_record(0, requested={"path": arm})
    return [
        first.model_copy(
            update={"launch_id": f"{arm}{pair}", "cell_id": f"{place:016x}", "pair": pair, "arm_id": arm,
                    "requested": first.requested | requested, "log": f"cells/{arm}{pair}/{place}/worker.log",
                    "command": f"python -m harness +path={arm} model=glm_52_nvfp4 isl={requested['isl']}"}
        )
        for pair in range(pairs)
        for place, requested in enumerate(grid(conditions))
    ]  # fmt: skip


def write_requests(folder: Path, records) -> None:
    """128 requests of each record, every latency different."""
    n = 128
    rng = np.random.default_rng(0)
    columns = {
        "launch_id": [record.launch_id for record in records for _ in range(n)],
        "cell_id": [record.cell_id for record in records for _ in range(n)],
        "phase": ["measured"] * n * len(records),
        "status": ["ok"] * n * len(records),
        "ttft_ms": rng.gamma(3.0, 10.0, n * len(records)),
        "tpot_ms": rng.gamma(9.0, 1.0, n * len(records)),
    }
    pq.write_table(pa.table(columns), folder / FILE_NAME)


def page_of(folder: Path, conditions: int) -> str:
    judgement = many_cells(conditions)
    records = {arm: records_of(arm, conditions) for arm in ("b", "c")}
    write_requests(folder, [*records["b"], *records["c"]])
    arms = [ArmRun(name=f"path_{arm}", folder=folder, run=RUN, records=records[arm]) for arm in ("b", "c")]
    return render_comparison(
        Compared(folder=folder, judgement=judgement, baseline=arms[0], candidate=arms[1])
    )


def check(text: str, cells: int) -> None:
    root = parse_page(text.strip().removeprefix("<!doctype html>"))
    assert len(root.by_id("matrix-table").all("tr")) == cells + 1
    assert len(root.by_id("cells").all("details")) == cells
    lines = root.by_id("cells").all("polyline")
    assert len(lines) == cells * 4  # TTFT and TPOT of both arms
    assert max(len(one.attributes["points"].split()) for one in lines) == (
        MOST_QUANTILES if cells <= MANY_CELLS else FEW_QUANTILES
    )
    assert sum(row.attributes["data-words"] == "FAIL" or "FAIL" in row.attributes["data-words"]
               for row in root.by_id("matrix-table").all("tr")[1:]) == 3  # fmt: skip


def test_forty_cells_leave_room_for_five_hundred(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "draw_curves", lambda comparison, names, ranks: ([], ""))
    monkeypatch.setattr(page, "forest", lambda columns, rows: Forest(plots=[], left_out=[]))
    text = page_of(tmp_path, 4)
    check(text, 40)
    assert len(text.encode()) < 800_000


@pytest.mark.slow
def test_five_hundred_cells_are_less_than_five_megabytes(tmp_path):
    text = page_of(tmp_path, 50)
    check(text, 500)
    assert len(text.encode()) < 5_000_000


def test_only_gated_failed_and_the_worst_cells_are_drawn():
    judgement = many_cells(4)
    findings = tuple(dataclasses.replace(one, gated=False) for one in judgement.comparison.findings)
    rows = decision_matrix(dataclasses.replace(judgement.comparison, findings=findings)).rows
    failed = {row.cell_id for row in rows if row.word == "FAIL"}
    drawn = drawn_cells(rows)
    assert len(failed) == 3 and failed < drawn and len(drawn) == 20
    assert len(drawn_cells(decision_matrix(judgement.comparison).rows)) == 40
