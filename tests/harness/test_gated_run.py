"""What a comparison asks of its run, and what it leaves."""

import dataclasses
from datetime import date
from types import SimpleNamespace

import pytest

from harness import gated_run
from harness.baseline_code import BaselineCode
from harness.comparison_info import ArmInfo, ComparisonInfo
from harness.errors import Cause, ExitCode
from harness.gated_run import FLOOR_COPY, GatedRun
from harness.noise_floor import floor_path
from harness.records import CellState
from harness.step_summary import VARIABLE, tell_step_summary
from harness.tier import Pairs, Tier
from reports.gate.plan_file import FloorFile, read_plan, write_floor
from tests.harness.test_pairs import WORDS, arms


def tier(gated=("out_tps",)):
    return Tier(name="test", pairs=Pairs(min=2, max=6, step=2), gated=list(gated))


def comparison(tmp_path, *, kind="gate", asked=None, revision="r1"):
    pairs, plan = arms(*WORDS, most=6)
    sides = {
        name: ArmInfo(name=name, revision=revision, arm_ids=[getattr(pairs[0], name).arm_id])
        for name in ("baseline", "candidate")
    }
    info = ComparisonInfo(kind=kind, difference=[], tier=asked, most_pairs=6, fingerprint="f", **sides)
    return GatedRun(plan=plan, tier=asked, info=info, code=BaselineCode(revision="r1"), out_dir=tmp_path)


@pytest.mark.parametrize(
    ("kind", "asked", "launches"), [("gate", tier(), 4), ("gate", None, 12), ("aa", tier(), 12)]
)
def test_launches_before_the_first_look(kind, asked, launches, tmp_path):
    assert len(comparison(tmp_path, kind=kind, asked=asked).first) == launches


def test_cold_starts_only_where_they_are_gated(tmp_path):
    assert not comparison(tmp_path, asked=tier()).cold_starts
    assert comparison(tmp_path, asked=tier(["startup_cold_s"])).cold_starts


def test_an_invalid_launch_counts_through_the_verdict_alone(tmp_path):
    gated, ungated = comparison(tmp_path, asked=tier()), comparison(tmp_path)
    assert gated.excuses(CellState.INVALID) and not ungated.excuses(CellState.INVALID)
    for state in (CellState.FAILED, CellState.PATH_MISMATCH, CellState.OOM, CellState.UNSUPPORTED):
        assert not gated.excuses(state)


def test_what_is_compared_is_written_before_anything_is_measured(tmp_path):
    gate = comparison(tmp_path, asked=tier())
    folder = SimpleNamespace(path=tmp_path / "run")
    folder.path.mkdir()
    write_floor(
        floor_path(tmp_path, "f"),
        FloorFile(fingerprint="f", measured_on=date.today(), run_id="aa", entries=[]),
    )
    gate.prepare(folder)
    plan = read_plan(folder.path)
    assert plan.fingerprint == "f" and plan.floor == FLOOR_COPY and (folder.path / FLOOR_COPY).is_file()
    assert sorted(plan.required) == sorted(gate.plan.cell_ids) and plan.tier == tier()
    assert plan.baseline.arm_ids != plan.candidate.arm_ids
    assert all("scripted" not in name for name in plan.required.values())


def named(tmp_path, names, revisions=("r1", "r1")):
    gate = comparison(tmp_path, asked=tier())
    arms = {
        role: arm.model_copy(update={"name": name, "revision": revision})
        for (role, arm), name, revision in zip(
            (("baseline", gate.info.baseline), ("candidate", gate.info.candidate)),
            names,
            revisions,
            strict=True,
        )
    }
    return dataclasses.replace(gate, info=gate.info.model_copy(update=arms))


@pytest.mark.parametrize(
    ("names", "revisions", "said"),
    [
        (("a", "b"), ("r1", "r2"), ["a", "b"]),
        (("a", "a"), ("r1", "r1"), ["a (baseline)", "a (candidate)"]),
        (("a", "a"), ("0123456789abc", "r2"), ["a at 0123456789", "a at r2"]),
    ],
)
def test_arms_can_be_told_apart(names, revisions, said, tmp_path):
    gate = named(tmp_path, names, revisions)
    gate.prepare(SimpleNamespace(path=tmp_path))
    plan = read_plan(tmp_path)
    assert [plan.baseline.name, plan.candidate.name] == said


def test_a_run_without_any_record_is_incomplete(tmp_path, monkeypatch):
    gate = comparison(tmp_path, asked=tier())
    folder = SimpleNamespace(path=tmp_path / "run")
    folder.path.mkdir()
    gate.prepare(folder)
    (folder.path / "run.json").write_text(run_json())
    monkeypatch.setattr(gated_run, "current_revision", lambda: "r1")
    assert gate.finish(folder, [], []).code is ExitCode.INCOMPLETE
    assert (
        gate.finish(folder, [], [Cause(code=ExitCode.INTERRUPTED, why="interrupted")]).code
        is ExitCode.INTERRUPTED
    )
    assert all((folder.path / name).is_file() for name in ("verdict.json", "junit.xml", "summary.md"))


def test_code_that_changed_meanwhile_makes_the_run_invalid(tmp_path, monkeypatch, capsys):
    gate = comparison(tmp_path, asked=tier())
    folder = SimpleNamespace(path=tmp_path / "run")
    folder.path.mkdir()
    gate.prepare(folder)
    (folder.path / "run.json").write_text(run_json())
    monkeypatch.setattr(gated_run, "current_revision", lambda: "r2")
    assert gate.finish(folder, [], []).code is ExitCode.INVALID


def run_json():
    from harness.records import RunInfo

    info = RunInfo(run_id="run", command="", started_at="", harness_version="", environment={}, plan=[])
    return info.model_dump_json()


def test_the_summary_goes_to_the_page_of_the_job(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("before\n")
    monkeypatch.setenv(VARIABLE, str(page))
    tell_step_summary("verdict")
    assert page.read_text() == "before\nverdict\n"
    monkeypatch.setenv(VARIABLE, str(tmp_path / "no" / "page.md"))
    tell_step_summary("verdict")  # said, not raised
    monkeypatch.delenv(VARIABLE)
    tell_step_summary("verdict")
    assert page.read_text() == "before\nverdict\n"
