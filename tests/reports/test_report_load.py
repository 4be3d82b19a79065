"""Loading a run folder: nothing lost, nothing guessed, errors that name the file."""

import json

import pandas as pd
import pytest

from harness.records import RecordError
from reports.load import NO_METRIC, NOT_SET, group_rows, load_run


def test_one_row_per_record_and_metric(run_folder, record, failed):
    data = load_run(run_folder([record(0), failed(1), record(2, requested={"concurrency": 111})]))
    assert len(data.frame) == 6 + 1 + 6
    assert list(data.frame[data.frame.order == 1].metric) == [NO_METRIC]
    assert data.frame[data.frame.order == 1].value.isna().all()
    missing = data.frame[(data.frame.order == 0) & (data.frame.metric == "ttft_p99_ms")]
    assert missing.value.isna().all() and "1000 samples" in missing.metric_reason.item()


def test_records_come_in_execution_order(run_folder, record):
    data = load_run(run_folder([record(2), record(0), record(1)]))
    assert [one.order for one in data.records] == [0, 1, 2]


def test_absent_group_keys_are_words(run_folder, record):
    records = [record(0, requested={"mtp": 3}), record(1), record(2, requested={"mtp": None})]
    frame = load_run(run_folder(records)).frame
    assert set(frame[frame.order > 0]["req.mtp"]) == {NOT_SET}
    groups = group_rows(frame, ["req.mtp", "req.request_rate"])
    assert [(key, len(rows)) for key, rows in groups] == [((3, NOT_SET), 6), ((NOT_SET, NOT_SET), 12)]


def test_grouping_keeps_rows_with_missing_keys():
    """Fault 059: spec in {mtp, None}, two rows each, gives two groups and four rows."""
    frame = pd.DataFrame({"spec": ["mtp", None, "mtp", None], "n": [1, 1, 1, 1]})
    groups = group_rows(frame, ["spec"])
    assert {key: len(rows) for (key,), rows in groups} == {"mtp": 2, NOT_SET: 2}
    assert sum(rows.n.sum() for _, rows in groups) == 4


def test_grouping_by_lists(run_folder, record):
    records = [record(0, requested={"tags": ["a", "b"]}), record(1, requested={"tags": []})]
    frame = load_run(run_folder(records)).frame
    assert [len(rows) for _, rows in group_rows(frame, ["req.tags"])] == [6, 6]


def test_no_records_file(run_folder):
    data = load_run(run_folder([]))
    assert data.records == [] and data.frame.empty and data.requests is None and data.warnings == []


def test_truncated_last_line_is_a_warning(run_folder, record):
    folder = run_folder([record(0), record(1)])
    with (folder / "records.jsonl").open("a") as file:
        file.write('{"schema_version": "1.0.0", "run_id"')
    data = load_run(folder)
    assert len(data.records) == 2
    assert data.warnings == ["records.jsonl: last line is truncated and was left out"]


def test_record_of_another_run_is_refused(run_folder, record):
    with pytest.raises(RecordError, match=r"records\.jsonl: record 2 belongs to run other, not run-1"):
        load_run(run_folder([record(0), record(1, run_id="other")]))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", "schema version None"),
        ('{"schema_version": "99.0.0"}', "schema version '99.0.0', known: 1.0.0"),
        ('{"schema_version": "1.0.0"}', "run_id: Field required"),
    ],
)
def test_unreadable_run_json(run_folder, text, message):
    folder = run_folder([])
    (folder / "run.json").write_text(text)
    with pytest.raises(RecordError, match=r"run\.json") as caught:
        load_run(folder)
    assert message in str(caught.value)


def test_not_a_run_folder(tmp_path):
    with pytest.raises(RecordError, match="is this a run folder"):
        load_run(tmp_path)


def test_requests_are_optional_and_unreadable_ones_a_warning(run_folder, record):
    folder = run_folder([record(0)])
    pd.DataFrame({"request_id": [1, 2]}).to_parquet(folder / "requests.parquet")
    assert len(load_run(folder).requests) == 2
    (folder / "requests.parquet").write_bytes(b"PAR1 not really")
    data = load_run(folder)
    assert data.requests is None and data.warnings[0].startswith("requests.parquet is unreadable")


def test_nan_in_records_is_refused_with_its_line(run_folder, record):
    folder = run_folder([record(0)])
    line = json.loads((folder / "records.jsonl").read_text())
    line["order"], line["launch_id"] = 1, "L9"
    line["metrics"]["out_tps"]["value"] = float("nan")
    with (folder / "records.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(RecordError, match="line 2: not valid JSON"):
        load_run(folder)
