"""An experiment from the command line to its page, on scripted paths of known speed."""

import math
import shutil

import pytest

from harness.__main__ import main
from harness.records import CellState
from reports.attribution import attribute
from reports.html import write_report
from tests.command_line import REPOSITORY, harness, info_of, names, only_run, records_of

FIXTURES = REPOSITORY / "tests" / "fixtures" / "experiments"
SPEEDS = ("experiment=speeds", "--config-dir", str(FIXTURES))
GAP_MS = {"walking": 32, "running": 16, "flying": 8}
# of a logarithm, half of the ln 2 = 0.69 between neighbours: a busy machine is late by milliseconds
TOLERANCE = 0.35


def test_contributions_are_those_of_the_script(tmp_path):
    done = harness(*SPEEDS, "concurrency=2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    records, experiment = records_of(tmp_path), info_of(tmp_path).experiment
    assert len(records) == 3 * 3 and experiment.paths == list(GAP_MS)
    assert [record.round for record in records] == [1] * 3 + [2] * 3 + [3] * 3
    first = [record.requested["path"] for record in records if record.slot == 0]
    assert first == ["walking", "flying", "walking"]
    for condition in attribute(experiment, records):
        assert condition.gaps == []
        for ladder in condition.ladders:
            for one in [*ladder.contributions, ladder.total]:
                expected = math.log(GAP_MS[one.before] / GAP_MS[one.after])
                assert one.n == 3 and one.middle == pytest.approx(expected, abs=TOLERANCE)
    page = (only_run(tmp_path) / "report.html").read_text()
    assert page.count('id="attribution"') == 1 and page.count("waterfall") > 4
    (header,) = [line for line in done.stdout.splitlines() if "out tok/s" in line]
    assert header.split()[:4] == ["path", "kv", "dtype", "round"]


def test_an_arm_that_dies_costs_its_rounds_and_nothing_else(tmp_path):
    words = ("experiment.rounds=2", "concurrency=2", "path.options.first_ms=5")
    folder = tmp_path / "mine"
    shutil.copytree(FIXTURES, folder)
    shutil.copy(FIXTURES.parent / "faulty_paths" / "faulty_engines.py", folder)
    (folder / "path" / "running.yaml").write_text(
        "name: running\nimpl: faulty_engines:FaultyPath\n"
        "options: {fault: raise, at_active: 0, first_ms: 5, gap_ms: 2}\n"
    )
    done = harness("experiment=speeds", *words, "--config-dir", str(folder), cwd=tmp_path)
    assert done.returncode == 5, done.stderr
    records = records_of(tmp_path)
    assert {record.state for record in records if record.requested["path"] == "running"} == {CellState.FAILED}
    (condition,) = attribute(info_of(tmp_path).experiment, records)
    throughput = condition.ladders[0]
    assert [one.n for one in [*throughput.contributions, throughput.total]] == [0, 0, 2]
    assert [(gap.round, gap.path) for gap in condition.gaps[:2]] == [(1, "running"), (2, "running")]
    assert "no round has a value of both arms" in (only_run(tmp_path) / "report.html").read_text()


def test_dry_run_prints_the_rounds_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*SPEEDS, "concurrency=1,4", "dry_run=true"]) == 0
    said = capsys.readouterr()
    assert [line for line in said.err.splitlines() if line.startswith("Round")] == [
        "Round 1", "Round 2", "Round 3",
    ]  # fmt: skip
    assert "18 cells on 9 launches" in said.err
    commands = [line for line in said.out.splitlines() if "-m harness" in line]
    assert len(commands) == 18 and not any("experiment" in line.split("--config-dir")[0] for line in commands)
    assert names(tmp_path) == []


@pytest.mark.parametrize(("verb", "said"), [("list", "dsa_mrv2_eager: "), ("doctor", "The main job")])
def test_other_commands_take_the_same_words(verb, said, capsys):
    main([f"cmd={verb}", "experiment=attribution", "concurrency=1,16"])
    captured = capsys.readouterr()
    assert said in captured.out and captured.err == ""


def test_the_list_names_experiments(capsys):
    assert main(["cmd=list", "path=scripted"]) == 0
    assert "experiments (experiment=NAME): attribution" in capsys.readouterr().out


def test_composed_configuration_of_an_experiment(capsys):
    assert main(["experiment=attribution", "--cfg", "job"]) == 0
    assert "ladder:" in capsys.readouterr().out


def test_a_run_that_was_cut_off_still_has_its_page(tmp_path):
    """Killed, a run leaves its records and no finished run.json; the page says how far it came."""
    assert harness(*SPEEDS, "experiment.rounds=2", cwd=tmp_path).returncode == 0
    run = only_run(tmp_path)
    lines = (run / "records.jsonl").read_text().splitlines(keepends=True)
    (run / "records.jsonl").write_text("".join(lines[:4]))
    page = write_report(run).read_text()
    assert "2 of 6 planned cells have no record" in page and "1 of 2 rounds" in page


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_shipped_ladder_runs_here(tmp_path):
    words = ("experiment.rounds=1", "concurrency=1,16", "measure_s=0.5", "warmup_s=0.2")
    done = harness("experiment=attribution", *words, cwd=tmp_path, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    conditions = attribute(info_of(tmp_path).experiment, records_of(tmp_path))
    assert [condition.title for condition in conditions] == ["concurrency=1", "concurrency=16"]
    for condition in conditions:
        for ladder in condition.ladders:
            assert [one.n for one in [*ladder.contributions, ladder.total]] == [1] * 5
            parts = math.fsum(one.by_round[1] for one in ladder.contributions)
            assert parts == pytest.approx(ladder.total.by_round[1], abs=1e-12)
    assert (only_run(tmp_path) / "report.html").read_text().count('id="attribution"') == 1
