"""Every bad input is one line and exit code 2, and leaves nothing behind."""

import pytest

from harness.__main__ import main
from tests.command_line import FAST, faulty, harness, names

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
    "option that a path does not know": (
        ["+path=dsa_mrv2", "+path.options.foo=1", "dry_run=true"], "path.options.foo", "takes model, compiled"
    ),
    "negative time in a script": (
        ["+path=scripted", "path.options.gap_ms=-1", "dry_run=true"], "path.options.gap_ms=-1",
        "greater than or equal to 0"
    ),
    "unknown experiment": (["experiment=atribution"], "experiment=atribution", "did you mean attribution?"),
    "experiment with a path": (
        ["experiment=attribution", "path=scripted"], "path=scripted", "experiment=attribution sets the paths"
    ),
    "two experiments": (["experiment=attribution,mine"], "experiment has one value per run", "run twice"),
    "no rounds": (
        ["experiment=attribution", "experiment.rounds=0"], "experiment.rounds=0", "an integer from 1 to 100"
    ),
    "ladder of one path": (
        ["experiment=attribution", "experiment.ladder=[{path: scripted}]"], "experiment.ladder", "two or more"
    ),
    "unknown path in a ladder": (
        ["experiment=attribution", "experiment.ladder=[{path: scripted}, {path: scrpted, switch: x}]"],
        "unknown path scrpted", "did you mean scripted"
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
    "comma at the end": (["+path=scripted", "isl=1,"], "isl=1,", "behind the last comma"),
    "unknown expected op": (
        ["+path=dsa_mrv2", "+path.expect.any.kernels.sparse_mlaa=[cpp]"], "sparse_mlaa", "mean sparse_mla?"
    ),
    "unknown flag": (["+path=scripted", "--fast"], "--fast", "--help"),
    "missing config folder": (["+path=scripted", "--config-dir", "nowhere"], "nowhere", "path/NAME.yaml"),
    "two gpus": (["+path=scripted", "gpus=2"], "gpus=2", "only 1 is supported so far"),
    "no gpu device": (["+path=scripted", "device=tpu"], "device=tpu", "cpu, cuda"),
    "request rate 0": (["+path=scripted", "request_rate=0"], "request_rate=0", "0.001 to 1000000"),
    "request rate inf": (["+path=scripted", "request_rate=inf"], "request_rate=inf", "0.001 to 1000000"),
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
    "isl of word problems": (["+path=dsa_mrv2", "workload=arith", "isl=64"], "isl=64", "leave isl out"),
    "data set without file": (["+path=scripted", "workload=dataset"], "workload.file", "workload.file=FILE"),
    "missing data set": (["+path=scripted", "workload=dataset", "workload.file=nowhere"], "nowhere", "JSONL"),
    "impl without module": (["+path=scripted", "path.impl=nowhere:X"], "nowhere", "install the package"),
    "impl without class": (["+path=scripted", "path.impl=paths.scripted:X"], "no such class", "ScriptedPath"),
    "impl malformed": (["+path=scripted", "path.impl=scripted"], "'scripted'", "module:Class"),
    "limit without accuracy": (["+path=scripted", "limit=5"], "limit=5", "accuracy=TASK"),
    "default shots without accuracy": (["+path=scripted", "shots=5"], "shots=5", "accuracy=TASK"),
    "questions without accuracy": (["+path=scripted", "gsm8k.test_file=q"], "gsm8k.test_file=q", "arith_gsm"),
    "limit without accuracy, two arms": (
        ["+path=scripted", "baseline=scripted", "limit=5"], "limit=5", "accuracy=TASK"
    ),
    "task twice": (["+path=scripted", "accuracy=[arith_gsm,arith_gsm]"], "[arith_gsm,arith_gsm]", "once"),
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
        ("", "cannot read"),
        ("{", "not valid JSON"),
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


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        (["concurrency=range(1,1000000000)"], "up to 10000 values"),
        (["concurrency=range(1,9,0)"], "the step not 0"),
        (["concurrency=range(1,inf)"], "finite"),
        (["concurrency=range(1,200)", "seed=range(0,100)"], "19900 cells; allowed: up to 10000"),
        (["concurrency=65537"], "from 1 to 65536"),
        (["request_rate=0.0009"], "from 0.001 to 1000000"),
        (["request_rate=1000001"], "from 0.001 to 1000000"),
        (["num_prompts=10000001"], "from 1 to 10000000"),
        (["measure_s=86401"], "0 to 86400"),
        (["warmup_s=86401"], "0 to 86400"),
        (["timeout_s=604801"], "up to 604800"),
        (["workload.file=prompts.jsonl"], "random prompts need no file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_could_never_end_is_refused(words, allowed, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["+path=scripted", *words]) == 2
    said = capsys.readouterr().err
    assert allowed in said and said.count("\n") == 1
    assert names(tmp_path) == []


def test_a_fault_before_any_cell_is_no_regression(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)

    def fault(_):
        raise ZeroDivisionError("injected\nfault")

    monkeypatch.setattr("harness.command_line.parse_arguments", fault)
    assert main(["+path=scripted"]) == 5
    said = capsys.readouterr().err
    assert "ZeroDivisionError: injected fault; traceback in" in said and said.count("\n") == 1
    (log,) = tmp_path.glob("harness-fault-*.log")
    assert log.read_text().startswith("Traceback")
