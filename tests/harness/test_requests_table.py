from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from harness.accuracy.questions import read_questions
from harness.measurement import Cut, Phase
from harness.records import REQUEST_COLUMNS, RecordError
from harness.requests_table import RequestsWriter, read_requests, request_rows
from paths.api import FinishReason
from tests.harness.measurements import MS, Row, measurement, spec

NAMES = {"run_id": "r", "launch_id": "l0", "cell_id": "c", "arm_id": "a"}


def example():
    rows = [
        Row([(20, 1), (40, 3)], sent=10, phase=Phase.WARMUP),
        Row([(50, 1), (80, 3)], sent=40, scheduled=39),
        Row([(90, 2)], sent=80),
        Row([], sent=90, finish=FinishReason.ERROR, ended=95, error="refused", asked=4),
        Row([(101, 1)], sent=95, finish=FinishReason.NONE, cut=Cut.TIMEOUT, ended=200),
        Row([(210, 1)], sent=200),
    ]
    return measurement(*rows, load=spec(first_request_id=7), measured=40)


def test_rows_say_what_arrived_and_null_what_did_not():
    rows = request_rows(example(), **NAMES, origin_ns=10 * MS).to_pylist()
    assert tuple(rows[0]) == REQUEST_COLUMNS
    assert rows[1] == {
        **NAMES, "phase": "measured", "request_id": 8, "prompt_hash": f"{1:016x}", "prompt_tokens": 4,
        "requested_tokens": 4, "output_tokens": 4, "first_event_tokens": 1, "events": 2,
        "scheduled_ns": 29 * MS, "sent_ns": 30 * MS, "first_ns": 40 * MS, "last_ns": 70 * MS,
        "ttft_ms": 10.0, "tpot_ms": 10.0, "e2e_ms": 40.0, "status": "ok", "finish_reason": "length",
        "error": None, "verifications": None, "drafted": None, "accepted": None,
    }  # fmt: skip
    assert [row["phase"] for row in rows] == ["warmup", *["measured"] * 5]
    assert rows[2]["tpot_ms"] is None  # two tokens in one event
    assert (rows[2]["ttft_ms"], rows[2]["e2e_ms"]) == (10.0, 10.0)
    failed = rows[3]
    assert (failed["status"], failed["finish_reason"], failed["error"]) == ("http_error", "error", "refused")
    assert [failed[name] for name in ("first_ns", "last_ns", "ttft_ms", "e2e_ms")] == [None] * 4
    assert (failed["output_tokens"], failed["requested_tokens"]) == (0, 4)
    assert (rows[4]["status"], rows[4]["finish_reason"], rows[4]["ttft_ms"]) == ("timeout", None, 6.0)


def test_requests_that_end_after_the_window_are_drain():
    rows = [Row([(10, 1)], sent=0), Row([(30, 1)], sent=0), Row([(20, 1)], sent=10)]
    table = request_rows(measurement(*rows, load=spec(concurrency=2)), **NAMES, origin_ns=0)
    assert table["phase"].to_pylist() == ["measured", "drain", "measured"]


def test_one_part_per_cell_and_one_file_at_the_end(tmp_path):
    writer = RequestsWriter(tmp_path)
    writer.add(example(), **NAMES)
    writer.add(measurement(Row([(500, 1)], sent=400)), **(NAMES | {"cell_id": "d"}))
    writer.add(measurement(), **NAMES)
    assert sorted(path.name for path in (tmp_path / "requests").iterdir()) == ["000.parquet", "001.parquet"]
    interrupted = read_requests(tmp_path)
    path = writer.finish()
    assert [entry.name for entry in tmp_path.iterdir()] == ["requests.parquet"]
    table = pq.read_table(path)
    assert table.equals(interrupted)
    assert table.column_names == list(REQUEST_COLUMNS)
    assert table["cell_id"].to_pylist() == ["c"] * 6 + ["d"]
    # times of a launch count from its first send, over all of its cells
    assert table["sent_ns"].to_pylist()[0] == 0
    assert table["sent_ns"].to_pylist()[-1] == 390 * MS


def test_each_launch_has_its_own_origin(tmp_path):
    writer = RequestsWriter(tmp_path)
    writer.add(example(), **NAMES)
    writer.add(measurement(Row([(500, 1)], sent=400)), **(NAMES | {"launch_id": "l1"}))
    assert read_requests(tmp_path)["sent_ns"].to_pylist()[-1] == 0


def test_a_run_without_requests_has_an_empty_table(tmp_path):
    assert read_requests(tmp_path).num_rows == 0
    table = pq.read_table(RequestsWriter(tmp_path).finish())
    assert (table.num_rows, table.column_names) == (0, list(REQUEST_COLUMNS))


def test_nothing_is_overwritten(tmp_path):
    RequestsWriter(tmp_path).add(example(), **NAMES)
    RequestsWriter(tmp_path).add(example(), **NAMES)
    assert read_requests(tmp_path).num_rows == 12
    RequestsWriter(tmp_path).finish()
    with pytest.raises(FileExistsError, match=r"requests\.parquet exists already"):
        RequestsWriter(tmp_path).finish()


def test_drafts_of_each_request():
    one = Row([(10, 1), (20, 3), (30, 1)], drafts=[(0, 0), (3, 2), (3, 0)])
    short = Row([(10, 1), (20, 2)], sent=5, drafts=[(0, 0), (1, 1)])
    none = Row([(40, 1)], sent=35, drafts=[(0, 0)])
    rows = request_rows(measurement(one, short, none), **NAMES, origin_ns=0).to_pylist()
    found = [(row["verifications"], row["drafted"], row["accepted"]) for row in rows]
    assert found == [(2, 6, 2), (1, 1, 1), (0, 0, 0)]


@pytest.mark.parametrize(("name", "read"), [("requests", read_requests), ("accuracy", read_questions)])
def test_a_damaged_table_is_named(name, read, tmp_path):
    (tmp_path / f"{name}.parquet").write_bytes(b"PAR1 and then the disk was full")
    with pytest.raises(RecordError, match=rf"{name}\.parquet: cannot be read"):
        read(tmp_path)
