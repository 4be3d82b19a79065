"""Good commands: a run, a dry run, inspection, the list, the doctor; from any directory."""

import subprocess
import sys

import pytest

from harness.__main__ import main
from harness.records import CellState
from harness.requests_table import read_requests
from tests.command_line import FAST, FAULTY, environment, harness, info_of, names, only_run, records_of


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
    assert help_.returncode == 0 and "concurrency: null" in help_.stdout and "--config-dir" in help_.stdout
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
    assert "dsa-path-harness" not in done.stdout  # not a package that pip could find
    big = harness("cmd=doctor", "model=v32", "engine.kv_pages=100000000", cwd=tmp_path)
    assert big.returncode == 2 and "MISSING memory" in big.stdout


@pytest.mark.parametrize(
    "words", [["cmd=list"], ["cmd=doctor"], ["+path=dsa_mrv2,generic_mrv1", "dry_run=true"], []], ids=" ".join
)
def test_harness_process_never_imports_torch(words, tmp_path):
    code = (
        "import sys; from harness.__main__ import main; import harness.run; main(sys.argv[1:]);"
        " assert 'torch' not in sys.modules, 'torch'; assert 'matplotlib' not in sys.modules, 'matplotlib'"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


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
