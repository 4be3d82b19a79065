"""The on-disk schema: what is written can be read by strict parsers, and nothing malformed passes."""

from __future__ import annotations

import json
import os

import pytest
from pydantic import ValidationError

from harness.records import (
    CellState,
    Metric,
    Record,
    RecordError,
    append_record,
    read_records,
    write_text_atomically,
)


def record(cell: str = "c1", **changes) -> Record:
    values = {
        "run_id": "r", "launch_id": "L000", "engine_id": "e", "cell_id": cell, "arm_id": "a", "pair": 0,
        "slot": 0, "order": 0, "label": "a cell", "state": CellState.OK, "requested": {}, "command": "x",
        "started_at": "2026-01-01T00:00:00+00:00",
    }  # fmt: skip
    return Record(**(values | changes))


def lines(path, *records: Record) -> list[str]:
    for one in records:
        append_record(path, one)
    return path.read_text().splitlines()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_fault_051_not_a_number_cannot_be_written(value):
    with pytest.raises(ValidationError):
        Metric(value=value, unit="ms", better="down", n=1)


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity"])
def test_fault_051_not_a_number_is_refused_with_its_line(tmp_path, literal):
    path = tmp_path / "records.jsonl"
    good, bad = lines(path, record("c1"), record("c2"))
    bad = bad.replace('"order":0', f'"order":{literal}')
    path.write_text(f"{good}\n{bad}\n")
    with pytest.raises(RecordError, match=f"line 2.*{literal}"):
        read_records(path)


def test_fault_051_absent_is_null_with_a_reason(tmp_path):
    absent = Metric(value=None, unit="ms", better="down", n=1, reason="one sample has no spread")
    (line,) = lines(tmp_path / "records.jsonl", record(metrics={"std": absent}))
    assert json.loads(line)["metrics"]["std"]["value"] is None
    with pytest.raises(ValidationError, match="either a value or a reason"):
        Metric(value=None, unit="ms", better="down", n=0)
    with pytest.raises(ValidationError, match="either a value or a reason"):
        Metric(value=1.0, unit="ms", better="down", n=1, reason="why")


def test_duplicate_rows_are_an_error(tmp_path):
    path = tmp_path / "records.jsonl"
    lines(path, record("c1"), record("c1"))
    with pytest.raises(RecordError, match="repeats the cell and launch of line 1"):
        read_records(path)


def test_a_state_without_numbers_carries_none_and_says_why():
    number = Metric(value=1.0, unit="ms", better="down", n=1)
    with pytest.raises(ValidationError, match="needs a reason"):
        record(state=CellState.FAILED)
    with pytest.raises(ValidationError, match="must not carry metrics"):
        record(state=CellState.OOM, reason="out of memory", metrics={"x": number})


def test_round_trip(tmp_path):
    path = tmp_path / "records.jsonl"
    written = record(label='<b>"|\\ é', metrics={"x": Metric(value=0.1, unit="ms", better="up", n=3)})
    append_record(path, written)
    assert read_records(path) == ([written], [])


def test_atomic_write_replaces_whole_files_and_leaves_no_draft(tmp_path, monkeypatch):
    path = tmp_path / "run.json"
    write_text_atomically(path, "old")
    assert path.stat().st_mode & 0o444 == 0o444 & ~_umask()
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_text_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_half_a_line_is_taken_back_when_the_disk_is_full(tmp_path, monkeypatch):
    file = tmp_path / "records.jsonl"
    file.write_text("complete\n")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    record = Record.model_construct(label="x")
    with pytest.raises(OSError, match="No space left"):
        append_record(file, record)
    assert file.read_text() == "complete\n"
