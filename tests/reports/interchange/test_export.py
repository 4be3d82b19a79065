"""Our numbers in the formats of others."""

from __future__ import annotations

import json

import pytest

from harness.records import RunInfo
from reports.interchange.csv_file import read_csv
from reports.interchange.export import export, vllm
from reports.interchange.json_files import read_json
from reports.interchange.records import records_of
from tests.reports.conftest import make_failed, make_record, write_run

INFO = {"cpu": "Example CPU", "gpu": None, "revision": "abc"}


@pytest.fixture
def records():
    rows = [
        make_record(order, cell_id="a" * 16, launch_id=f"L{order}", label='<b> "c" ../x')
        for order in range(2)
    ]
    return [*rows, make_failed(2, cell_id="b" * 16)]


def written(tmp_path, records, form):
    write_run(tmp_path, [], environment=INFO)
    run = RunInfo.model_validate_json((tmp_path / "run.json").read_text())
    files = export(run, records, form)
    for name, content in files.items():
        assert "/" not in name and "NaN" not in content
        (tmp_path / name).write_text(content)
    return files


def test_csv_comes_back_as_it_went(tmp_path, records):
    (name,) = written(tmp_path, records, "csv")
    rows = read_csv(tmp_path / name).rows
    assert len(rows) == 3 and rows[0].values == {
        name: metric.value for name, metric in records[0].metrics.items() if metric.value is not None
    }
    assert rows[2].values == {} and rows[0].identity["isl"] == 32


def test_csv_keeps_cells_apart_and_arms_together(tmp_path, records):
    """Cells that differ in what has no column stay two; those of another path are the same cells."""
    rows = [make_record(n, cell_id=str(n) * 16, requested={"path": "a", "isl": 32}) for n in range(2)]
    written(tmp_path, rows, "csv")
    read = read_csv(tmp_path / "records.csv")
    cells = [one.cell_id for one in imported(read)]
    assert len(set(cells)) == 2
    other = [make_record(n, cell_id=str(n) * 16, requested={"path": "b", "isl": 32}) for n in range(2)]
    written(tmp_path, other, "csv")
    again = imported(read_csv(tmp_path / "records.csv"))
    assert [one.cell_id for one in again] == cells
    assert {one.arm_id for one in again}.isdisjoint({one.arm_id for one in imported(read)})


def imported(read):
    return records_of(read, run_id="r", arm="candidate", file_name="f", command="c", started_at="2026-01-01")


def test_what_an_imported_record_does_not_say_is_left_out():
    bare = make_record(statuses={}).model_copy(update={"requested": {"path": "candidate", "model": "m"}})
    document = vllm(bare)
    assert not {"completed", "num_prompts", "request_rate"} & document.keys()


def test_vllm_files_are_read_like_theirs(tmp_path, records):
    files = written(tmp_path, records, "vllm")
    assert len(files) == 2  # a failed cell has no numbers
    row = read_json(tmp_path / next(iter(files))).rows[0]
    assert row.values["ttft_p50_ms"] == records[0].metrics["ttft_p50_ms"].value
    document = json.loads(next(iter(files.values())))
    assert document["completed"] == 64 and document["request_rate"] == "inf" and "p99_ttft_ms" not in document


def test_pytorch_records_hold_all_launches(tmp_path, records):
    (content,) = written(tmp_path, records, "pytorch_v3").values()
    found = {one["metric"]["name"]: one for one in json.loads(content)}
    value = records[0].metrics["out_tps"].value
    assert found["out_tps"]["metric"]["benchmark_values"] == [value, value]
    assert (
        found["out_tps"]["model"]["name"] == "tiny_v32"
        and found["out_tps"]["runners"][0]["name"] == "Example CPU"
    )
    assert "ttft_p99_ms" not in found
