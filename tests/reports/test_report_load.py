"""Loading a run folder: nothing lost, nothing guessed, errors that name the file."""

import json

import pytest

from harness.records import RecordError
from reports.load import load_run


def test_records_come_in_execution_order(run_folder, record):
    data = load_run(run_folder([record(2), record(0), record(1)]))
    assert [one.order for one in data.records] == [0, 1, 2]


def test_no_records_file(run_folder):
    data = load_run(run_folder([]))
    assert data.records == [] and data.warnings == []


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
        ('{"schema_version": "99.0.0"}', "schema version '99.0.0', known: 1.4.0"),
        ('{"schema_version": "1.4.0"}', "run_id: Field required"),
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


def test_nan_in_records_is_refused_with_its_line(run_folder, record):
    folder = run_folder([record(0)])
    line = json.loads((folder / "records.jsonl").read_text())
    line["order"], line["launch_id"] = 1, "L9"
    line["metrics"]["out_tps"]["value"] = float("nan")
    with (folder / "records.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    with pytest.raises(RecordError, match="line 2: not valid JSON"):
        load_run(folder)
