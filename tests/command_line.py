"""Runs the command line as a user does, and reads what it left behind."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from harness.records import Record, RunInfo, read_records

FAULTY = Path(__file__).parent / "fixtures" / "faulty_paths"
REPOSITORY = Path(__file__).parent.parent
FAST = ("measure_s=0.3", "warmup_s=0", "isl=4", "osl=6", "path.options.first_ms=5", "path.options.gap_ms=2")


def command(*words):
    return [sys.executable, "-m", "harness", *words]


def environment(**extra):
    """The harness must be importable from any directory, installed or not."""
    return {**os.environ, "PYTHONPATH": str(REPOSITORY), **extra}


def harness(*words, cwd, env=None, timeout=120):
    return subprocess.run(
        command(*words), cwd=cwd, env=env or environment(), capture_output=True, text=True, timeout=timeout
    )


def harness_within(program, *words, cwd, timeout=120):
    """The command line, run by a Python program that prepares a fault in the harness itself."""
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def faulty(name, *options, fast=True):
    return (f"+path={name}", *(FAST if fast else ()), *options, "--config-dir", str(FAULTY))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def only_run(folder):
    (run,) = (folder / "results").iterdir()
    return run


def records_of(folder) -> list[Record]:
    records, warnings = read_records(only_run(folder) / "records.jsonl")
    assert not warnings
    return records


def info_of(folder) -> RunInfo:
    return RunInfo.model_validate_json((only_run(folder) / "run.json").read_text())


def processes_of(folder):
    """Processes that work in a run below `folder`."""
    found = []
    for process in psutil.process_iter():
        try:
            cache = process.environ().get("TRITON_CACHE_DIR", "")
            if process.status() != psutil.STATUS_ZOMBIE and str(folder) in cache:
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_until(condition, timeout_s=30.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
