"""Engines that go wrong, measurements that prove nothing, variables that leak: states and exit codes."""

import json
import os
import re

import pytest

from harness.records import CellState
from harness.requests_table import read_requests
from tests.command_line import (
    FAST,
    FAULTY,
    environment,
    faulty,
    harness,
    harness_within,
    info_of,
    only_run,
    processes_of,
    records_of,
)


@pytest.mark.parametrize(
    ("fault", "state", "words"),
    [
        ("raise", CellState.FAILED, "illegal memory access"),
        pytest.param(
            "exit",
            CellState.FAILED,
            "code 7; last line of its log: injected: last words",
            marks=pytest.mark.slow,
        ),
        pytest.param("memory", CellState.OOM, "MemoryError", marks=pytest.mark.slow),
        ("kill", CellState.OOM, "SIGKILL"),
        ("hang", CellState.TIMEOUT, "timeout_s"),
    ],
)
def test_death_in_one_cell_costs_that_cell_alone(fault, state, words, tmp_path):
    options = (f"path.options.fault={fault}", "path.options.at_active=4", "concurrency=1,4,2", "timeout_s=2")
    done = harness(*faulty("faulty", *options), cwd=tmp_path)
    assert done.returncode == 5, done.stderr
    before, dead, after = records_of(tmp_path)
    assert (before.state, dead.state, after.state) == (CellState.OK, state, CellState.OK)
    assert [r.requested["concurrency"] for r in (before, dead, after)] == [1, 4, 2]
    assert words in dead.reason and not dead.metrics
    assert after.launch_id != before.launch_id == dead.launch_id
    assert (only_run(tmp_path) / dead.log).is_file()
    assert (only_run(tmp_path) / "report.html").is_file()
    assert info_of(tmp_path).exit_code == 5
    rows = read_requests(only_run(tmp_path)).to_pylist()
    assert {row["cell_id"] for row in rows} == {before.cell_id, dead.cell_id, after.cell_id}
    assert processes_of(tmp_path) == []


@pytest.mark.parametrize(
    ("fault", "state"),
    [
        ("exit", "FAILED"),
        pytest.param("raise", "FAILED", marks=pytest.mark.slow),
        pytest.param("memory", "OOM", marks=pytest.mark.slow),
        pytest.param("hang", "TIMEOUT", marks=pytest.mark.slow),
    ],
)
def test_death_at_start_up_fails_all_cells_of_the_launch(fault, state, tmp_path):
    words = faulty("faulty", f"path.options.fault={fault}", "concurrency=1,2", "timeout_s=2")
    done = harness(*words, cwd=tmp_path)
    assert done.returncode == 5
    records = records_of(tmp_path)
    assert [str(record.state) for record in records] == [state, state]
    assert all("at start-up" in record.reason and record.effective is None for record in records)
    assert processes_of(tmp_path) == []


def test_children_of_a_dead_engine_do_not_live_on(tmp_path):
    options = ("path.options.fault=sleepers", "path.options.at_active=2", "concurrency=2,1")
    done = harness(*faulty("faulty", *options), cwd=tmp_path)
    assert done.returncode == 5
    assert [record.state for record in records_of(tmp_path)] == [CellState.FAILED, CellState.OK]
    assert processes_of(tmp_path) == []


def test_children_of_a_healthy_engine_are_ended_with_it(tmp_path):
    done = harness(*faulty("faulty", "path.options.fault=sleepers_and_stay"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert processes_of(tmp_path) == []


def test_requests_that_all_fail_are_an_infrastructure_failure(tmp_path):
    done = harness("+path=scripted", *FAST, "concurrency=2", "path.options.fail_every=1", cwd=tmp_path)
    assert done.returncode == 5
    (record,) = records_of(tmp_path)
    assert record.state == CellState.FAILED and "scripted failure" in record.reason and not record.metrics


def test_path_that_runs_something_else_is_a_mismatch(tmp_path):
    done = harness(*faulty("liar", "kv_dtype=fp8", "concurrency=1,2"), cwd=tmp_path)
    assert done.returncode == 6
    for record in records_of(tmp_path):
        assert record.state == CellState.PATH_MISMATCH and not record.metrics
        assert "runner 'V1', expected 'script'" in record.reason
        assert "kv_dtype 'bf16', requested 'fp8'" in record.reason
        assert record.effective["runner"] == "V1"


def test_kernel_that_was_never_called_is_a_mismatch(tmp_path):
    expectation = "path.expect={any:{kernels:{sparse_mla:[cpp]}}}"
    done = harness("+path=scripted", *FAST, expectation, cwd=tmp_path)
    assert done.returncode == 6
    assert "kernel sparse_mla was never called" in records_of(tmp_path)[0].reason


def test_fallback_is_visible_and_keeps_its_numbers(tmp_path):
    done = harness(*faulty("fallback"), cwd=tmp_path)
    assert done.returncode == 0
    (record,) = records_of(tmp_path)
    assert record.state == CellState.FALLBACK and "torch instead of cpp" in record.reason
    assert record.metrics["out_tps"].value > 0
    assert "FALLBACK" in done.stdout


def test_unsupported_path_is_a_row_beside_the_others(tmp_path):
    words = ("+path=elsewhere,scripted", "measure_s=0.3", "warmup_s=0", "--config-dir", str(FAULTY))
    done = harness(*words, cwd=tmp_path)
    assert done.returncode == 7
    states = {record.requested["path"]: record for record in records_of(tmp_path)}
    assert states["elsewhere"].state == CellState.UNSUPPORTED
    assert "capability 9.0" in states["elsewhere"].reason
    assert states["scripted"].state == CellState.OK


def test_no_variable_leaks_into_an_engine(tmp_path):
    foreign = {
        "VLLM_USE_BREAKABLE_CUDAGRAPH": "0",
        "OMP_NUM_THREADS": "7",
        "KMP_AFFINITY": "none",
        "MY_TOKEN": "hidden",
    }
    done = harness(
        *faulty("faulty", "path.options.fault=environment", "threads=1"),
        cwd=tmp_path,
        env=environment(**foreign),
    )
    assert done.returncode == 0, done.stderr
    (record,) = records_of(tmp_path)
    seen = json.loads((only_run(tmp_path) / record.log).read_text().splitlines()[0])
    assert not {"VLLM_USE_BREAKABLE_CUDAGRAPH", "KMP_AFFINITY", "MY_TOKEN"} & seen.keys()
    assert seen["OMP_NUM_THREADS"] == "1"
    assert seen["PATH"] == os.environ["PATH"]
    assert seen["TORCHINDUCTOR_CACHE_DIR"].startswith(str(only_run(tmp_path)))
    blocked = info_of(tmp_path).environment["blocked_variables"]
    assert {"VLLM_USE_BREAKABLE_CUDAGRAPH", "OMP_NUM_THREADS", "KMP_AFFINITY"} <= set(blocked)
    assert "MY_TOKEN" not in blocked and "hidden" not in json.dumps(info_of(tmp_path).model_dump())


@pytest.mark.parametrize("load", [("concurrency=2",), ("concurrency=null", "request_rate=50")], ids=" ".join)
def test_failed_requests_are_a_flag_that_nobody_overlooks(load, tmp_path):
    done = harness("+path=scripted", *FAST, *load, "path.options.fail_every=2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (record,) = records_of(tmp_path)
    assert record.state == CellState.OK and record.metrics["success_rate"].value < 1
    assert record.checks["success"].ok is False
    assert "requests failed; the first: http_error (scripted failure)" in record.checks["success"].detail
    assert "check success" in done.stdout and "scripted failure" in done.stdout
    assert re.search(r"OK check success.* failed", done.stderr)
    assert "scripted failure" in (only_run(tmp_path) / "report.html").read_text()


def test_more_requests_than_slots_are_a_flag(tmp_path):
    done = harness("+path=scripted", *FAST, "concurrency=3,2", "engine.max_num_seqs=2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    queued, fits = records_of(tmp_path)
    assert queued.checks["slots"].ok is False and fits.checks["slots"].ok is True
    assert "1 requests always wait in the engine's queue" in done.stdout


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("early_stop_every=2", "osl: output length contract broken: 3 of 6 tokens"),
        ("empty_every=2", "osl: output length contract broken: 0 of 6 tokens"),
    ],
)
def test_broken_lengths_make_a_cell_invalid(option, words, tmp_path):
    done = harness("+path=scripted", *FAST, f"path.options.{option}", cwd=tmp_path)
    assert done.returncode == 6, done.stderr
    (record,) = records_of(tmp_path)
    assert record.state == CellState.INVALID and not record.metrics
    assert words in record.reason and record.checks["osl"].ok is False


@pytest.mark.parametrize(
    ("path", "words"),
    [("miscounting", "tokens: client read"), ("caching", "prompt tokens came from a cache (limit 1%)")],
)
def test_accounts_that_do_not_agree_make_a_cell_invalid(path, words, tmp_path):
    done = harness(*faulty(path), cwd=tmp_path)
    assert done.returncode == 6, done.stderr
    (record,) = records_of(tmp_path)
    assert record.state == CellState.INVALID and words in record.reason and not record.metrics


FAIL_ONCE = """
import sys
from harness import attempt, cell_run, recording, results
from harness.__main__ import main

original, calls = {target}, []
def fail_once(*args, **keywords):
    calls.append(1)
    if len(calls) == 1:
        raise {error}
    return original(*args, **keywords)

{target} = fail_once
sys.exit(main(sys.argv[1:]))
"""

CONTRADICTORY_TIMES = """
import sys
from harness import metrics, request_times, requests_table
from harness.__main__ import main

def contradict(measurement):
    raise request_times.MeasurementError("negative time")

metrics.derive = requests_table.derive = contradict
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "target",
    [
        "recording.summarize",
        pytest.param("cell_run.run_load", marks=pytest.mark.slow),
        pytest.param("attempt.EngineProcess", marks=pytest.mark.slow),
    ],
)
def test_a_fault_of_the_harness_costs_one_cell(target, tmp_path):
    program = FAIL_ONCE.format(target=target, error="RuntimeError('injected fault')")
    done = harness_within(program, "+path=scripted", *FAST, "concurrency=1,2", cwd=tmp_path)
    assert done.returncode == 5, done.stderr
    bad, good = records_of(tmp_path)
    assert bad.state == CellState.FAILED and "RuntimeError: injected fault" in bad.reason
    log = (only_run(tmp_path) / bad.log).read_text()
    assert log.startswith("Traceback") and "RuntimeError: injected fault" in log
    assert good.state == CellState.OK and good.metrics["out_tps"].value > 0
    assert (only_run(tmp_path) / "report.html").is_file() and info_of(tmp_path).exit_code == 5
    assert processes_of(tmp_path) == []


def test_a_fault_after_the_row_was_written_keeps_the_row(tmp_path):
    """Requests that cannot be written: the record stands, the exit code says that something is missing."""
    program = FAIL_ONCE.format(target="results.RequestsWriter.add", error="OSError('disk full')")
    done = harness_within(program, "+path=scripted", *FAST, "concurrency=1,2", cwd=tmp_path)
    assert done.returncode == 5, done.stderr
    first, second = records_of(tmp_path)
    assert (first.state, second.state) == (CellState.OK, CellState.OK)
    assert "disk full" in done.stderr
    rows = read_requests(only_run(tmp_path)).to_pylist()
    assert {row["cell_id"] for row in rows} == {second.cell_id}


def test_contradictory_times_are_an_invalid_row(tmp_path):
    done = harness_within(CONTRADICTORY_TIMES, "+path=scripted", *FAST, "concurrency=1,2", cwd=tmp_path)
    assert done.returncode == 6, done.stderr
    records = records_of(tmp_path)
    assert [record.state for record in records] == [CellState.INVALID] * 2
    assert records[0].reason == "contradictory times: negative time"
    assert "its requests are not in requests.parquet: negative time" in done.stderr
    assert (only_run(tmp_path) / "report.html").is_file()
