"""comparison.json and the file of an A/A run."""

from __future__ import annotations

import json
from datetime import date

import pytest

from harness.records import RecordError
from reports.gate.plan_file import (
    ArmSource,
    ComparisonFile,
    FloorFile,
    floor_entries,
    read_floor,
    read_plan,
    write_floor,
    write_plan,
)
from reports.gate.run_gate import judge_folder
from tests.reports.compare.arms import tier
from tests.reports.verdict_page.judged import compared_folder

LOSSES = {("cell", "out_tps"): [0.01, -0.01, 0.002], ("cell", "al"): [0.0, 0.0]}
DAY = date(2026, 1, 15)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "aa" / "machine.json"
    floor = FloorFile(
        fingerprint="machine", measured_on=date(2026, 1, 1), run_id="r", entries=floor_entries(LOSSES)
    )
    write_floor(path, floor)
    return path


def test_a_floor_is_read_back(file):
    found = read_floor(file, today=DAY, oldest_days=14, fingerprint="machine")
    assert found.problem is None and found.measured_on == "2026-01-01"
    assert found.of("cell", "out_tps").losses == (0.01, -0.01, 0.002)
    assert found.of("cell", "al") is None and "2 usable pairs" in found.why_not("cell", "al")
    assert "no A/A run of this cell" in found.why_not("other", "al")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"today": date(2026, 1, 16)}, "15 days old, allowed are 14"),
        ({"oldest_days": 7}, "14 days old, allowed are 7"),
        ({"fingerprint": "other"}, "another machine"),
        ({"fingerprint": None}, "another machine"),
    ],
)
def test_a_floor_that_may_not_be_used_says_why(file, changes, said):
    found = read_floor(file, **({"today": DAY, "oldest_days": 14, "fingerprint": "machine"} | changes))
    assert said in found.problem and found.of("cell", "out_tps") is None
    assert said in found.why_not("cell", "out_tps")


def test_no_floor_is_a_reason_and_a_broken_one_an_error(tmp_path, file):
    for missing in (None, tmp_path / "nothing.json"):
        found = read_floor(missing, today=DAY, oldest_days=14, fingerprint="machine")
        assert found.problem == "no A/A run on this machine"
    file.write_text(file.read_text().replace("1.0.0", "9.9.9"))
    with pytest.raises(RecordError, match=r"schema version '9\.9\.9'"):
        read_floor(file, today=DAY, oldest_days=14, fingerprint="machine")
    file.write_text(json.dumps({"schema_version": "1.0.0", "entries": []}))
    with pytest.raises(RecordError, match=r"machine\.json: fingerprint"):
        read_floor(file, today=DAY, oldest_days=14, fingerprint="machine")
    file.write_text("{")
    with pytest.raises(RecordError, match="not valid JSON"):
        read_floor(file, today=DAY, oldest_days=14, fingerprint="machine")


def test_a_plan_is_read_back(tmp_path):
    plan = ComparisonFile(
        baseline=ArmSource(run_dir=".", arm_ids=["a"], name="old"),
        candidate=ArmSource(run_dir="."),
        tier=tier(),
        required={"cell": "c16"},
        judged_on=DAY,
    )
    write_plan(tmp_path, plan)
    assert read_plan(tmp_path) == plan


@pytest.mark.parametrize("fingerprint", ["another machine", None])
def test_a_verdict_stands_on_no_floor_of_another_machine(tmp_path, fingerprint):
    folder = compared_folder(tmp_path, loads=(16,))
    assert judge_folder(folder).verdict.verdict == "PASS"
    write_plan(folder, read_plan(folder).model_copy(update={"fingerprint": fingerprint}))
    verdict = judge_folder(folder).verdict
    assert (verdict.verdict, verdict.exit_code) == ("INCONCLUSIVE", 3)
    assert "another machine" in verdict.floor.problem
    assert all(one.floor_pct is None for one in verdict.gates)
