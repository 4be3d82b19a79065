"""Two arms through the command line: the plan, the verdict and its artifacts, refusals, resume."""

import json
import os
import signal
import subprocess
import sys
import venv
import xml.etree.ElementTree as ET
from datetime import date, timedelta

import pytest

from harness.__main__ import main
from harness.records import RunInfo, read_records
from tests.command_line import FAST, REPOSITORY, environment, harness_within, names, wait_until
from tests.gating import FAST_BASELINE, PATIENT, QUICK, gated, run_of, verdict_of

DRY = ("+path=scripted", "concurrency=4,1", "dry_run=true")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_slow_candidate_fails_and_every_artifact_says_so(tmp_path):
    summary = tmp_path / "step.md"
    words = ("+path=scripted", "path.options.gap_ms=30", "tier=pr", "pairs=4", "concurrency=2")
    done = subprocess.run(
        [sys.executable, "-c", PATIENT, *FAST_BASELINE, *words, *QUICK],
        cwd=tmp_path,
        env=environment(GITHUB_STEP_SUMMARY=str(summary)),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    verdict, run = verdict_of(tmp_path), run_of(tmp_path)
    assert (verdict["verdict"], verdict["exit_code"], verdict["interleaved"]) == ("FAIL", 1, True)
    failed = {gate["metric"] for gate in verdict["gates"] if gate["verdict"] == "FAIL"}
    assert {"out_tps", "tpot_pooled_ms"} <= failed
    assert all(gate["n_pairs"] == 4 for gate in verdict["gates"])
    records, _ = read_records(run / "records.jsonl")
    planned = records[:8]  # a pair that a busy machine spoilt is measured again after them
    assert [record.arm for record in planned] == ["baseline", "candidate", "candidate", "baseline"] * 2
    assert [record.round for record in planned] == [1, 1, 2, 2, 3, 3, 4, 4]
    info = RunInfo.model_validate_json((run / "run.json").read_text())
    assert info.exit_code == 1 and info.comparison is not None
    assert info.comparison.difference == ["path.options.gap_ms: 2 → 30"]
    for arm in (info.comparison.baseline, info.comparison.candidate):
        assert all((run / "cells" / folder / "config.yaml").is_file() for folder in arm.folders)
    assert ET.parse(run / "junit.xml").getroot().findall(".//failure")
    assert (
        "FAIL" in summary.read_text()
        and summary.read_text().strip() == (run / "summary.md").read_text().strip()
    )
    assert (run / "report.html").is_file() and "FAIL (exit 1)" in done.stdout


def test_smoke_judges_no_speed_and_still_everything_else(tmp_path):
    words = ("+path=scripted", "path.options.gap_ms=30", "tier=smoke", "concurrency=1")
    done = gated(*FAST_BASELINE, *words, *QUICK, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    verdict = verdict_of(tmp_path)
    assert (verdict["verdict"], verdict["exit_code"]) == ("NOT_GATED", 0)
    assert [gate["gate"] for gate in verdict["gates"]] == ["measurement"]


@pytest.mark.parametrize(
    ("option", "code", "word"),
    [
        ("fail_every=1", 5, "FAILED"),
        pytest.param("requests=[{events:[[1,1]],finish:stop}]", 6, "INVALID", marks=pytest.mark.slow),
    ],
)
def test_a_gate_that_examined_nothing_is_never_0(option, code, word, tmp_path):
    words = ("+path=scripted", f"path.options.{option}", "tier=smoke", "concurrency=1")
    done = gated(*FAST_BASELINE, *words, *QUICK, cwd=tmp_path)
    verdict = verdict_of(tmp_path)
    assert done.returncode == verdict["exit_code"], done.stdout
    assert done.returncode == code and word in done.stdout
    assert verdict["counts"]["PASS"] == verdict["counts"]["IMPROVED"] == 0


def test_the_plan_is_printed_and_nothing_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["baseline=scripted", *DRY, "tier=nightly"]) == 0
    said = capsys.readouterr()
    assert "16 cells on 8 launches" in said.err
    assert "judged at 4, 6, 8 pairs" in said.err and "this run can FAIL but not PASS" in said.err
    assert names(tmp_path) == []


def refusal(capsys, *words):
    assert main(list(words)) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("harness: ")
    return said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("baseline=nope",), "baseline=nope: unknown path"),
        (("baseline=scripted", "baseline_set={kv_dtyp: fp8}"), "kv_dtyp"),
        (("baseline=scripted", "baseline_set={debug.checks: true}"), "debug.checks cannot be set there"),
        (
            ("baseline=scripted", "mtp=2", "baseline_set={mtp_mode: forced, mtp_forced_al: 3}"),
            "mtp_mode cannot be set there",
        ),
        (("baseline=scripted", "baseline_set=3"), "baseline_set=3"),
        (("cmd=foo",), "allowed: run, list, doctor"),
        (("baseline=scripted", "tier=prr"), "did you mean pr"),
        (("baseline=scripted", "tier=pr", "tier.gated=[]"), "tier.gated=[]: tier pr would"),
        (("baseline=scripted", "pairs=0"), "pairs=0: not allowed"),
        (("baseline=scripted", "pairs=1,2"), "one value per run"),
        (("pairs=4",), "there is no baseline"),
        (("baseline_set={kv_dtype: fp8}",), "there is no baseline"),
        (("tier=pr",), "tier=pr"),
        (("baseline_rev=no-such-ref",), "git knows no such commit"),
        (("baseline_rev=--output=x",), "git knows no such commit"),
        (("baseline_rev=HEAD", "baseline_python=python3"), "give one"),
        (("baseline_python=/nowhere/python",), "cannot be started"),
        (("baseline=scripted", "experiment=attribution"), "leave experiment or baseline out"),
        (("cmd=aa",), "name it with baseline=NAME"),
        (("cmd=aa", "baseline=scripted", "tier=smoke"), "show no noise"),
        (("cmd=aa", "baseline=scripted", "baseline_rev=HEAD"), "leave it out"),
        (("resume=20000101-000000-dead",), "no such run"),
        (("resume=../x",), "no such run"),
    ],
)
def test_a_mistake_is_one_line(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert said in refusal(capsys, *DRY[:2], "dry_run=false", *words)
    assert names(tmp_path) == []


def test_a_baseline_without_a_candidate_is_told(capsys):
    assert "no candidate" in refusal(capsys, "baseline=scripted", "concurrency=1")


def test_an_installation_without_git_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("harness.baseline_code.checkout", lambda: tmp_path)
    assert "is not a git checkout" in refusal(capsys, *DRY[:2], "baseline_rev=HEAD")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_resume_after_sigkill_keeps_launches_that_ended(tmp_path):
    words = (*FAST_BASELINE, "+path=scripted", "pairs=2", "concurrency=1,2", *QUICK, "measure_s=0.6")
    words = tuple(dict.fromkeys(word for word in words if word != "measure_s=0.2"))
    process = subprocess.Popen(
        [sys.executable, "-c", PATIENT, *words],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_until(
        lambda: (tmp_path / "results").is_dir() and any((tmp_path / "results").iterdir()), timeout_s=60
    )
    records = run_of(tmp_path) / "records.jsonl"
    wait_until(lambda: records.is_file() and records.read_text().count("\n") >= 3, timeout_s=60)
    os.kill(process.pid, signal.SIGSTOP)
    busy = gated(f"resume={run_of(tmp_path).name}", cwd=tmp_path)
    assert busy.returncode == 2 and "still going on" in busy.stderr
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before, _ = read_records(records)
    assert 3 <= len(before) < 8
    ended = [one for one in before if [other.order for other in before].count(one.order) == 2]
    changed = gated(*words, f"resume={run_of(tmp_path).name}", "seed=7", cwd=tmp_path)
    assert changed.returncode == 2, changed.stderr
    assert "seed was 0, is 7" in changed.stderr.splitlines()[-1]
    assert read_records(records)[0] == before
    done = gated(f"resume={run_of(tmp_path).name}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    after, _ = read_records(records)
    assert len(after) == 8 and after[: len(ended)] == ended
    assert not {one.launch_id for one in before if one not in ended} & {one.launch_id for one in after}
    assert sorted(one.order for one in after) == [0, 0, 1, 1, 2, 2, 3, 3]
    info = RunInfo.model_validate_json((run_of(tmp_path) / "run.json").read_text())
    assert len(info.resumed_at) == 1 and info.exit_code == 0 and "pairs=2" in info.command
    assert names(tmp_path / "results") == [info.run_id]
    again = gated(f"resume={info.run_id}", cwd=tmp_path)
    assert again.returncode == 2 and "has ended with exit code 0" in again.stderr


INTERRUPTED = """
import os, signal, sys
import harness.environment
harness.environment.code_revision = harness.environment.current_revision = lambda: "r1"
from harness.results import Results
done = Results.save
def save(self, *given, **named):
    done(self, *given, **named)
    if len(self.records) == 1:
        os.kill(os.getpid(), signal.SIGINT)
Results.save = save
from harness.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_plain_run_goes_on_after_ctrl_c(tmp_path):
    words = ("+path=scripted", "concurrency=1,2", "seed=0,1", *FAST)
    assert harness_within(INTERRUPTED, *words, cwd=tmp_path).returncode == 130
    run = run_of(tmp_path)
    skipped, _ = read_records(run / "records.jsonl")
    assert [record.state for record in skipped].count("SKIPPED") == 3
    done = gated(f"resume={run.name}", cwd=tmp_path, program=INTERRUPTED.replace("== 1", "== -1"))
    assert done.returncode == 0, done.stderr
    records, _ = read_records(run / "records.jsonl")
    assert [record.state for record in records] == ["OK"] * 4
    assert json.loads((run / "run.json").read_text())["exit_code"] == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_noise_floor_then_a_gate_that_stands_on_it(tmp_path):
    words = ("concurrency=1", *QUICK[:-1])
    measured = gated("cmd=aa", "baseline=scripted", "pairs=4", *words, cwd=tmp_path)
    assert measured.returncode == 0, measured.stderr
    (floor,) = (tmp_path / "results" / "aa").iterdir()
    content = json.loads(floor.read_text())
    assert content["measured_on"] == date.today().isoformat() and len(content["entries"]) > 10
    assert all(len(entry["losses"]) == 4 for entry in content["entries"])
    old = content | {"measured_on": (date.today() - timedelta(days=15)).isoformat()}
    for name, stored, expected in (("second", content, ""), ("third", old, "15 days old")):
        folder = tmp_path / name / "aa"
        folder.mkdir(parents=True)
        (folder / floor.name).write_text(json.dumps(stored))
        out = (f"out_dir={name}", "tier=pr", "pairs=4")
        done = gated("baseline=scripted", "+path=scripted", *words, *out, cwd=tmp_path)
        (run,) = [one for one in (tmp_path / name).iterdir() if one.name != "aa"]
        verdict = json.loads((run / "verdict.json").read_text())
        assert expected in (verdict["floor"]["problem"] or "") and verdict["verdict"] != "FAIL", done.stdout
        if expected:
            assert done.returncode == 3 and verdict["counts"]["PASS"] == 0
        else:
            assert (run / "noise_floor.json").read_text() == (folder / floor.name).read_text()
            assert all(gate["floor_pct"] is not None for gate in verdict["gates"])


@pytest.mark.slow
def test_an_installed_baseline_is_measured_with_its_own_interpreter(tmp_path):
    """An environment that finds this checkout and these packages by itself."""
    venv.create(tmp_path / "other", symlinks=True)
    places = [str(REPOSITORY), *(path for path in sys.path if path.endswith("site-packages"))]
    (site,) = (tmp_path / "other").glob("lib/python*/site-packages")
    (site / "baseline.pth").write_text("\n".join(places) + "\n")
    python = str(tmp_path / "other" / "bin" / "python")
    words = ("+path=scripted", f"baseline_python={python}", "pairs=1", "concurrency=1", *QUICK)
    done = gated(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = run_of(tmp_path)
    info = RunInfo.model_validate_json((run / "run.json").read_text())
    assert info.comparison.baseline.python == python and info.comparison.candidate.python is None
    assert info.comparison.baseline.code_root == str(REPOSITORY)
    records, _ = read_records(run / "records.jsonl")
    assert [(one.arm, one.state) for one in records] == [("baseline", "OK"), ("candidate", "OK")]
    assert all(one.effective["code_root"] == str(REPOSITORY) for one in records)
    (site / "baseline.pth").unlink()
    refused = gated(*words, cwd=tmp_path)
    assert refused.returncode == 2 and "it cannot import paths.worker" in refused.stderr.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "words", [("+path=scripted", *QUICK), ("+path=dsa_mrv2", *QUICK[:-1])], ids=["scripted", "dsa_mrv2"]
)
def test_a_commit_that_made_it_slower_is_found(words, tmp_path):
    """A clone with two commits; the second plants a slow-down in the code, not in the configuration."""
    clone = tmp_path / "clone"
    product = ("harness", "paths", "reports", "conf", "pyproject.toml")
    listing = ["git", "-C", str(REPOSITORY), "ls-files", "-z", "-co", "--exclude-standard", *product]
    files = subprocess.run(listing, capture_output=True, text=True, check=True).stdout.split("\0")
    for name in filter(None, files):
        source = REPOSITORY / name
        if source.is_file() and source.suffix != ".safetensors":
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            (clone / name).write_bytes(source.read_bytes())
    git = ["git", "-C", str(clone), "-c", "user.name=t", "-c", "user.email=t@example.com"]
    subprocess.run([*git[:3], "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "before"], check=True)
    worker = clone / "paths" / "worker.py"
    text, step = worker.read_text(), "        events = engine.step()\n"
    assert text.count(step) == 1
    worker.write_text(text.replace(step, f'        __import__("time").sleep(0.05)\n{step}'))
    subprocess.run([*git, "commit", "-qam", "slower"], check=True)
    words = ("baseline_rev=HEAD~1", "concurrency=2", "tier=pr", "pairs=4", *words)
    done = subprocess.run(
        [sys.executable, "-c", PATIENT, *words],
        cwd=tmp_path,
        env=environment(PYTHONPATH=str(clone)),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    records, _ = read_records(run_of(tmp_path) / "records.jsonl")
    roots = {record.arm: record.effective["code_root"] for record in records}
    assert roots["candidate"] == str(clone) and roots["baseline"].endswith("/baseline_code")
    assert names(run_of(tmp_path)).count("baseline_code") == 0
    listed = subprocess.run([*git, "worktree", "list"], capture_output=True, text=True, check=True).stdout
    assert len(listed.splitlines()) == 1
