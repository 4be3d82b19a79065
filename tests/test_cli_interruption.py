"""Ctrl-C, SIGTERM, SIGKILL: what was measured stays, no process does."""

import signal
import subprocess
import time

import pytest

from harness.records import CellState, read_records
from harness.requests_table import read_requests
from tests.command_line import (
    FAST,
    command,
    environment,
    faulty,
    harness_within,
    info_of,
    only_run,
    processes_of,
    records_of,
    wait_until,
)


def start_long_run(folder, *words):
    """A run in the middle of its second cell."""
    process = subprocess.Popen(
        command(*words),
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: (folder / "results").is_dir() and any((folder / "results").iterdir()))
    wait_until(lambda: (only_run(folder) / "records.jsonl").is_file())
    time.sleep(0.3)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_interruption_keeps_what_was_measured(number, tmp_path):
    process = start_long_run(tmp_path, "+path=scripted", "measure_s=3", "warmup_s=0", "concurrency=1,2,3")
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    first, second, third = records_of(tmp_path)
    assert first.state == CellState.OK and first.metrics["out_tps"].value > 0
    assert second.state == CellState.SKIPPED and "interrupted" in second.reason
    assert third.state == CellState.SKIPPED and "before this cell" in third.reason
    assert info_of(tmp_path).exit_code == 130
    assert (
        str(only_run(tmp_path) / "report.html") in stdout and (only_run(tmp_path) / "report.html").is_file()
    )
    assert len(read_requests(only_run(tmp_path))) > 0
    assert processes_of(tmp_path) == []


def test_second_interruption_does_not_stop_the_clean_up(tmp_path):
    process = start_long_run(tmp_path, "+path=scripted", "measure_s=3", "warmup_s=0", "concurrency=1,2,3")
    for _ in range(5):
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert len(records_of(tmp_path)) == 3
    assert processes_of(tmp_path) == []


@pytest.mark.parametrize("fault", ["none", "hang"], ids=["working engine", "hung engine"])
def test_engine_does_not_outlive_a_killed_harness(fault, tmp_path):
    options = (f"path.options.fault={fault}", "path.options.at_active=2", "concurrency=1,2", "timeout_s=100")
    words = faulty("faulty", *options, "measure_s=1", "warmup_s=0", fast=False)
    process = start_long_run(tmp_path, *words)
    assert processes_of(tmp_path)
    process.kill()
    process.communicate(timeout=60)
    wait_until(lambda: not processes_of(tmp_path))
    records, _ = read_records(only_run(tmp_path) / "records.jsonl")
    assert records[0].state == CellState.OK


INTERRUPTED_WHILE_SAVING = """
import os, signal, sys
import harness.run_folder
from harness.records import append_record
from harness.__main__ import main

def append_slowly(path, record):
    os.kill(os.getpid(), signal.SIGINT)
    append_record(path, record)
    os.kill(os.getpid(), signal.SIGINT)

harness.run_folder.append_record = append_slowly
sys.exit(main(sys.argv[1:]))
"""

INTERRUPTED_AFTER_THE_LOAD = """
import os, signal, sys
import harness.run
from harness.client import load
from harness.__main__ import main

drive = load._Load.drive
def drive_and_be_interrupted(self):
    drive(self)
    os.kill(os.getpid(), signal.SIGINT)

load._Load.drive = drive_and_be_interrupted
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("program", [INTERRUPTED_WHILE_SAVING, INTERRUPTED_AFTER_THE_LOAD])
def test_a_finished_measurement_survives_an_interruption(program, tmp_path):
    """Ctrl-C between the end of a load and its row, twice while the row is written, and during the report."""
    done = harness_within(program, "+path=scripted", *FAST, "concurrency=1,2", cwd=tmp_path)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    first, second = records_of(tmp_path)  # raises for a duplicate row
    assert first.state == CellState.OK and first.metrics["out_tps"].value > 0
    assert second.state == CellState.SKIPPED and "before this cell" in second.reason
    rows = read_requests(only_run(tmp_path)).to_pylist()
    assert {row["cell_id"] for row in rows} == {first.cell_id}
    assert info_of(tmp_path).exit_code == 130
    assert (only_run(tmp_path) / "report.html").is_file()
    assert processes_of(tmp_path) == []
