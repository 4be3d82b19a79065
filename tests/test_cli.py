"""The command line as a user meets it: good commands, every bad input, faults of engines, interruption."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from harness.__main__ import main
from harness.records import CellState, Record, RunInfo, read_records
from harness.requests_table import read_requests

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


# --- good commands ---


def test_one_command_measures_and_reports(tmp_path):
    done = harness("+path=scripted", "concurrency=1,4", *FAST, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    one, four = records_of(tmp_path)
    assert (one.state, four.state) == (CellState.OK, CellState.OK)
    assert (one.requested["concurrency"], four.requested["concurrency"]) == (1, 4)
    assert one.launch_id == four.launch_id and one.engine_id == four.engine_id
    assert one.cell_id != four.cell_id and one.arm_id == four.arm_id
    assert one.effective["runner"] == "script" and one.startup["ready_s"] > 0
    assert four.metrics["out_tps"].value > one.metrics["out_tps"].value > 0
    assert set(four.statuses) == {"ok"}
    assert four.counters["output_tokens"] > 0
    run = only_run(tmp_path)
    assert (run / "report.html").is_file() and (run / one.log).is_file()
    assert {row["cell_id"] for row in read_requests(run).to_pylist()} == {one.cell_id, four.cell_id}
    assert not (run / "cache").exists()
    assert info_of(tmp_path).exit_code == 0 and info_of(tmp_path).finished_at
    table = done.stdout
    assert "c1 " in table and "c4 " in table and "out tok/s" in table and "TPOT" in table and "TTFT" in table
    assert str(run / "report.html") in table
    assert names(tmp_path) == ["results"]


def test_command_of_a_record_measures_that_cell_alone(tmp_path):
    assert harness("+path=scripted", "concurrency=1,2", "seed=3", *FAST, cwd=tmp_path).returncode == 0
    record = records_of(tmp_path)[1]
    words = record.command.split()
    assert words[:3] == ["python", "-m", "harness"]
    again = tmp_path / "again"
    again.mkdir()
    assert harness(*words[3:], cwd=again).returncode == 0
    (same,) = records_of(again)
    assert (same.cell_id, same.arm_id, same.engine_id) == (record.cell_id, record.arm_id, record.engine_id)


@pytest.mark.parametrize("spelling", ["path=scripted", "+path=scripted", "++path=scripted"])
def test_spellings_of_path(spelling, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([spelling, "dry_run=true", "-m"]) == 0
    assert "scripted" in capsys.readouterr().err


def test_dry_run_prints_commands_and_writes_nothing(tmp_path):
    done = harness("+path=scripted,dsa_mrv2", "concurrency=1,1024", "dry_run=true", cwd=tmp_path)
    assert done.returncode == 0
    assert "paths.worker" in done.stdout
    assert "python -m harness +path=dsa_mrv2 concurrency=1024\n" in done.stdout
    assert "dry_run" not in done.stdout
    assert "4 cells on 2 launches" in done.stderr
    assert names(tmp_path) == []


def test_without_arguments_it_says_what_to_type(tmp_path):
    done = harness(cwd=tmp_path)
    assert done.returncode == 2
    for path in ("dsa_mrv2", "generic_mrv1", "scripted"):
        assert f"python -m harness +path={path}" in done.stderr
    assert names(tmp_path) == []


def test_help_version_and_hydras_inspection(tmp_path):
    help_ = harness("--help", cwd=tmp_path)
    assert help_.returncode == 0 and "concurrency: 1" in help_.stdout and "--config-dir" in help_.stdout
    version = harness("--version", cwd=tmp_path)
    assert version.returncode == 0 and version.stdout.startswith("harness ")
    cfg = harness("path=scripted", "concurrency=3,5", "--cfg", "job", "-m", cwd=tmp_path)
    assert cfg.returncode == 0 and "concurrency: 3\n" in cfg.stdout and "impl: paths.scripted" in cfg.stdout
    assert "first of 2 cells" in cfg.stderr
    for flags, text in ((["--info", "defaults"], "path/scripted"), (["--cfg", "hydra"], "hydra:")):
        done = harness("+path=scripted", *flags, cwd=tmp_path)
        assert done.returncode == 0 and text in done.stdout
    assert names(tmp_path) == []


@pytest.mark.parametrize("flags", [["--cfg", "job"], ["--cfg", "all"]], ids=" ".join)
def test_inspection_of_a_users_folder(flags, tmp_path):
    done = harness("+path=liar", *flags, "--config-dir", str(FAULTY), cwd=tmp_path)
    assert done.returncode == 0 and "faulty_engines:LiarPath" in done.stdout


def test_list_names_everything_and_survives_broken_paths(tmp_path):
    done = harness("cmd=list", "--config-dir", str(FAULTY), cwd=tmp_path)
    assert done.returncode == 0
    for text in ("dsa_mrv2: fused", "generic_mrv1: unfused", "tiny_v32", "dataset", "sparse_mla"):
        assert text in done.stdout
    assert "elsewhere: unsupported here: needs compute capability 9.0" in done.stdout
    assert "no_module: cannot be used:" in done.stdout and "no_class: cannot be used:" in done.stdout
    assert names(tmp_path) == []


def test_list_of_nothing_usable_is_an_error(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["cmd=list", "concurrency=0"]) == 2
    assert "concurrency=0" in capsys.readouterr().err


def test_doctor_judges_every_line(tmp_path):
    done = harness("cmd=doctor", cwd=tmp_path)
    assert done.returncode in (0, 2)
    assert ("can run here" in done.stdout) == (done.returncode == 0)
    lines = done.stdout.splitlines()
    for subject in ("torch", "cores", "memory", "C++ compiler", "GPU", "triton", "clock source"):
        (line,) = [line for line in lines if line[8:].startswith(subject)]
        assert line.split()[0] in ("OK", "WARN", "MISSING")
        assert line.startswith("OK") or "→" in line
    big = harness("cmd=doctor", "model=v32", "engine.kv_pages=100000000", cwd=tmp_path)
    assert big.returncode == 2 and "MISSING memory" in big.stdout


@pytest.mark.parametrize(
    "words", [["cmd=list"], ["cmd=doctor"], ["+path=dsa_mrv2,generic_mrv1", "dry_run=true"], []], ids=" ".join
)
def test_harness_process_never_imports_torch(words, tmp_path):
    code = (
        "import sys; from harness.__main__ import main; import harness.run; main(sys.argv[1:]);"
        " assert 'torch' not in sys.modules, 'torch'; assert 'pandas' not in sys.modules, 'pandas'"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


# --- bad input: one line, exit 2, nothing written ---

BAD = {
    "unknown path": (["+path=dsa_mrv3"], "path=dsa_mrv3", "dsa_mrv2"),
    "path list": (["+path=[scripted,dsa_mrv2]"], "one path", "path=a,b"),
    "no path": (["concurrency=4"], "no path", "+path=NAME"),
    "unknown model": (["+path=scripted", "model=tiny"], "model=tiny", "tiny_v32"),
    "unknown workload": (["+path=scripted", "workload=rnd"], "workload=rnd", "random"),
    "unknown dtype": (["+path=scripted", "dtype=fp16"], "dtype=fp16", "bf16, float32"),
    "unknown kv dtype": (["+path=scripted", "kv_dtype=fp7"], "kv_dtype=fp7", "fp8_ds_mla"),
    "unknown index dtype": (["+path=scripted", "index_dtype=int4"], "index_dtype=int4", "fp8"),
    "unknown key": (["+path=scripted", "concurency=4"], "concurency", "did you mean concurrency?"),
    "unknown added key": (["+path=scripted", "+conc=4"], "unknown key conc", "concurrency"),
    "unknown key in a section": (["+path=scripted", "engine.kv_page=4"], "engine.kv_page", "engine.kv_pages"),
    "unknown key of a path": (["+path=scripted", "+path.grpahs=true"], "path.grpahs", "options"),
    "unknown expectation": (["+path=scripted", "+path.expect.any.runer=V1"], "runer", "did you mean runner?"),
    "unknown key in a sweep": (["+path=scripted", "isl=4,8", "sed=1"], "sed", "did you mean"),
    "unknown command": (["cmd=measure", "+path=scripted"], "cmd=measure", "run, list, doctor"),
    "concurrency 0": (["+path=scripted", "concurrency=0"], "concurrency=0", "an integer from 1"),
    "concurrency -1": (["+path=scripted", "concurrency=-1"], "concurrency=-1", "an integer from 1"),
    "concurrency 1.5": (["+path=scripted", "concurrency=1.5"], "concurrency=1.5", "an integer from 1"),
    "concurrency text": (["+path=scripted", "concurrency=many"], "concurrency=many", "an integer from 1"),
    "concurrency true": (["+path=scripted", "concurrency=true"], "concurrency=true", "an integer from 1"),
    "concurrency list": (["+path=scripted", "concurrency=[1,2]"], "concurrency=[1, 2]", "1,1024"),
    "concurrency null": (["+path=scripted", "concurrency=null"], "concurrency=null", "request_rate"),
    "option of a path without options": (
        ["+path=dsa_mrv2", "+path.options.foo=1", "dry_run=true"], "path.options.foo", "takes no options"
    ),
    "negative time in a script": (
        ["+path=scripted", "path.options.gap_ms=-1", "dry_run=true"], "gap_ms", "must not be negative"
    ),
    "late bad cell": (["+path=scripted", "concurrency=1,2,0"], "concurrency=0", "an integer from 1"),
    "empty sweep": (["+path=scripted", "concurrency=range(5,1)"], "sweep is empty", "concurrency=a,b"),
    "empty glob": (["+path=glob(zz*)"], "sweep is empty", "path=a,b"),
    "glob over a value": (["+path=scripted", "isl=glob(*)"], "glob needs a group", "workload"),
    "empty choice": (["+path=scripted", "concurrency=choice()"], "concurrency=choice()", "empty choice"),
    "empty value": (["+path=scripted", "concurrency="], "concurrency=", "an integer from 1"),
    "given twice": (["+path=scripted", "isl=1", "isl=2"], "isl is given twice", "isl=a,b"),
    "sweep of a run setting": (["+path=scripted", "measure_s=1,2"], "measure_s", "one value per run"),
    "deletion": (["+path=scripted", "~isl"], "~isl", "key=null"),
    "no assignment": (["+path=scripted", "isl"], "'isl'", "key=value"),
    "unreadable": (["+path=scripted", "isl=[1"], "isl=[1", "cannot read"),
    "unknown flag": (["+path=scripted", "--fast"], "--fast", "--help"),
    "missing config folder": (["+path=scripted", "--config-dir", "nowhere"], "nowhere", "path/NAME.yaml"),
    "two gpus": (["+path=scripted", "gpus=2"], "gpus=2", "only 1 is supported so far"),
    "no gpu device": (["+path=scripted", "device=tpu"], "device=tpu", "cpu, cuda"),
    "request rate 0": (["+path=scripted", "request_rate=0"], "request_rate=0", "above 0"),
    "request rate inf": (["+path=scripted", "request_rate=inf"], "request_rate=inf", "above 0"),
    "burstiness 0": (["+path=scripted", "burstiness=0"], "burstiness=0", "above 0"),
    "negative seed": (["+path=scripted", "seed=-1"], "seed=-1", "from 0"),
    "isl 0": (["+path=scripted", "isl=0"], "isl=0", "from 1"),
    "osl 0": (["+path=scripted", "osl=0"], "osl=0", "from 1"),
    "timeout 0": (["+path=scripted", "timeout_s=0"], "timeout_s=0", "above 0"),
    "negative measure": (["+path=scripted", "measure_s=-1"], "measure_s=-1", "from 0"),
    "threads 0": (["+path=scripted", "threads=0"], "threads=0", "auto"),
    "threads beyond cores": (["+path=scripted", "threads=100000"], "threads=100000", "1 to"),
    "prompt too long": (["+path=scripted", "isl=9000"], "isl=9000", "engine.max_model_len"),
    "model len too long": (["+path=scripted", "engine.max_model_len=8193"], "8193", "8192"),
    "cache too small": (["+path=scripted", "isl=100", "engine.kv_pages=1"], "engine.kv_pages=1", "to 2"),
    "missing checkpoint": (["+path=scripted", "checkpoint=nowhere"], "nowhere", "config.json"),
    "data set without file": (["+path=scripted", "workload=dataset"], "workload.file", "workload.file=FILE"),
    "missing data set": (["+path=scripted", "workload=dataset", "workload.file=nowhere"], "nowhere", "JSONL"),
    "impl without module": (["+path=scripted", "path.impl=nowhere:X"], "nowhere", "install the package"),
    "impl without class": (["+path=scripted", "path.impl=paths.scripted:X"], "no such class", "ScriptedPath"),
    "impl malformed": (["+path=scripted", "path.impl=scripted"], "'scripted'", "module:Class"),
    "absent variable": (["+path=scripted", "dtype=${oc.env:NOT_SET_ANYWHERE}"], "NOT_SET_ANYWHERE", "dtype"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_exit_2(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words, value, remedy = BAD[name]
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [line for line in captured.err.splitlines() if not line.startswith(("Plan", " "))]
    assert len(lines) == 1 and lines[0].startswith("harness: ")
    assert value in lines[0] and remedy in lines[0]
    assert "Traceback" not in captured.err
    assert names(tmp_path) == []


def test_bad_input_through_the_real_command(tmp_path):
    done = harness("+path=scripted", "concurrency=0", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and done.stdout == ""


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_results_folder_that_cannot_be_written(place, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    done = harness("+path=scripted", f"out_dir={place}", *FAST, cwd=tmp_path)
    assert done.returncode == 2
    assert f"out_dir={place}: cannot be written" in done.stderr and "choose" in done.stderr
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "no config.json"),
        ("{", "cannot read config.json"),
        ("[]", "not an object"),
        ("{}", "architecture"),
    ],
    ids=["empty folder", "truncated", "no object", "unknown architecture"],
)
def test_bad_checkpoint_folder(content, complaint, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    if content:
        (folder / "config.json").write_text(content)
        (folder / "model.safetensors").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    assert main(["+path=scripted", f"checkpoint={folder}"]) == 2
    assert complaint in capsys.readouterr().err
    assert names(tmp_path) == ["checkpoint"]


@pytest.mark.parametrize("line", ['{"prompt_ids": [1, 2', '{"prompt_ids": [99999]}', '{"text": "x"}'])
def test_bad_data_set_is_refused_before_anything_starts(line, tmp_path, monkeypatch, capsys):
    (tmp_path / "prompts.jsonl").write_text('{"prompt_ids": [5, 6]}\n' + line + "\n")
    monkeypatch.chdir(tmp_path)
    assert main(["+path=scripted", "workload=dataset", "workload.file=prompts.jsonl"]) == 2
    assert "line 2" in capsys.readouterr().err
    assert names(tmp_path) == ["prompts.jsonl"]


def test_refusal_by_the_engine_is_one_line_and_leaves_nothing(tmp_path):
    done = harness(*faulty("faulty", "path.options.fault=refuse", "concurrency=1,2"), cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "harness: injected: tensor model.norm.weight is missing; copy the checkpoint again"
    )
    assert "Traceback" not in done.stderr
    assert names(tmp_path / "results") == []


def test_path_that_imports_torch_to_describe_itself(tmp_path):
    done = harness(*faulty("imports_torch", fast=False), cwd=tmp_path)
    assert done.returncode == 2 and "move the import into start()" in done.stderr


# --- faults of engines ---


@pytest.mark.parametrize(
    ("fault", "state", "words"),
    [
        ("raise", CellState.FAILED, "illegal memory access"),
        ("exit", CellState.FAILED, "code 7; last line of its log: injected: last words"),
        ("memory", CellState.OOM, "MemoryError"),
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
    ("fault", "state"), [("raise", "FAILED"), ("exit", "FAILED"), ("memory", "OOM"), ("hang", "TIMEOUT")]
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


# --- isolation and interruption ---


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


# --- from anywhere ---


def test_foreign_conf_and_harness_in_the_working_directory(tmp_path):
    (tmp_path / "conf" / "path").mkdir(parents=True)
    (tmp_path / "conf" / "config.yaml").write_text("concurrency: [not, ours]\n")
    (tmp_path / "conf" / "path" / "scripted.yaml").write_text("name: foreign\n")
    (tmp_path / "conf" / "__init__.py").write_text("raise RuntimeError('foreign conf')\n")
    (tmp_path / "harness.py").write_text("raise RuntimeError('foreign harness')\n")
    (tmp_path / "paths.py").write_text("raise RuntimeError('foreign paths')\n")
    # what the console script does: its folder, not the working directory, heads sys.path
    script = tmp_path / "bin" / "harness"
    script.parent.mkdir()
    script.write_text("import sys\nfrom harness.__main__ import main\nsys.exit(main())\n")
    done = subprocess.run(
        [sys.executable, str(script), "+path=scripted", *FAST],
        cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert records_of(tmp_path)[0].state == CellState.OK
