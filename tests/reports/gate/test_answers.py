"""Accuracy and equivalence of two run folders, from the files to the exit code."""

from __future__ import annotations

import datetime

import pytest

from harness.accuracy.questions import QuestionsWriter
from harness.accuracy.score import AccuracyScore, Proportion
from harness.records import RecordError
from harness.tier import Tier
from reports.gate.banner import banner
from reports.gate.plan_file import ArmSource, ComparisonFile, write_plan
from reports.gate.run_gate import judge_folder
from reports.gate.summary import render_summary
from tests.reports.compare.arms import tier
from tests.reports.compare.test_equivalence import equivalence, level
from tests.reports.conftest import make_record, write_run

N = 200


def score(n=N) -> AccuracyScore:
    return AccuracyScore(
        task="gsm8k", part="full", concurrency=64, shots=5, limit=None, questions=n, answered=n,
        complete=True, acc_numeric=Proportion.of(n // 2, n), acc_strict=Proportion.of(0, n),
        acc_flexible=Proportion.of(0, n), prompts_hash="p", task_version="1",
    )  # fmt: skip


def arm(folder, name, *, right=N, scored=True, n=N, **changes):
    """One run of one cell; the first `right` of its n answers are right."""
    record = make_record(
        cell_id="cell", arm_id=name, launch_id=name, run_id=name, label=f"{name} c64", checks={},
        requested={"path": name}, accuracy=[score(n)] if scored else [], **changes,
    )  # fmt: skip
    run = write_run(folder / name, [record], run_id=name)
    rows = [
        {"task": "gsm8k", "part": "full", "concurrency": 64, "shots": 5, "doc_id": i, "prompt_hash": f"h{i}",
         "numeric_correct": i < right, "numeric_parsed": "1", "truncated": False, "error": None}
        for i in range(n)
    ]  # fmt: skip
    writer = QuestionsWriter(run)
    if scored:
        writer.add(rows, run_id=name, launch_id=name, cell_id="cell", arm_id=name)
    writer.finish()
    return run


def judged(folder, gate: Tier | None = None, *, interleaved=False):
    target = folder / "comparison"
    target.mkdir()
    sources = {name: ArmSource(run_dir=f"../{name}") for name in ("old", "new")}
    write_plan(
        target,
        ComparisonFile(
            baseline=sources["old"],
            candidate=sources["new"],
            interleaved=interleaved,
            tier=gate,
            judged_on=datetime.date(2026, 1, 1),
        ),
    )
    return judge_folder(target)


def accuracy_of(judgement):
    return {one.rule.name if one.rule else "": one for one in judgement.others if one.gate == "accuracy"}


def test_lost_answers_are_a_correctness_failure(tmp_path):
    arm(tmp_path, "old")
    arm(tmp_path, "new", right=N - 40)
    judgement = judged(tmp_path, tier())
    found = accuracy_of(judgement)["accuracy"]
    assert (found.verdict, judgement.outcome.exit_code) == ("FAIL", 4)
    assert found.cell == "c64: gsm8k 5-shot c64" and found.candidate == pytest.approx(0.8)
    entry = next(one for one in judgement.verdict.gates if one.gate == "accuracy")
    assert entry.metric == "accuracy" and entry.n_pairs == N and entry.loss_pct == pytest.approx(20)
    assert "loss 20.0 points [" in banner(judgement.verdict)  # of 100, not % of the baseline
    assert "| 1.50 points |" in render_summary(judgement.verdict)


def test_the_same_answers_pass(tmp_path):
    arm(tmp_path, "old")
    arm(tmp_path, "new")
    assert {one.verdict for one in accuracy_of(judged(tmp_path, tier())).values()} == {"PASS"}


@pytest.mark.parametrize(("scored", "verdict", "code"), [("old", "MISSING", 7), ("new", "NEW", 3)])
def test_scored_in_one_arm_only(tmp_path, scored, verdict, code):
    for name in ("old", "new"):
        arm(tmp_path, name, scored=name == scored)
    judgement = judged(tmp_path, tier())
    assert [one.verdict for one in judgement.others] == [verdict]
    assert judgement.outcome.exit_code == code


def test_lost_answers_of_a_score_are_no_new_score(tmp_path):
    for name in ("old", "new"):
        arm(tmp_path, name)
    (tmp_path / "old" / "accuracy.parquet").unlink()
    with pytest.raises(RecordError, match=r"old: no answers of .*; restore accuracy\.parquet"):
        judged(tmp_path, tier())


def test_two_runs_are_never_interleaved_whatever_the_plan_says(tmp_path):
    for name in ("old", "new"):
        arm(tmp_path, name)
    assert not judged(tmp_path, tier(), interleaved=True).comparison.interleaved


def test_a_subset_is_not_comparable(tmp_path):
    arm(tmp_path, "old")
    arm(tmp_path, "new", n=50)
    assert accuracy_of(judged(tmp_path, tier()))["accuracy"].verdict == "NOT_COMPARABLE"


def test_smoke_and_no_tier_gate_no_answers(tmp_path):
    arm(tmp_path, "old")
    arm(tmp_path, "new", right=0)
    assert not any(one.gated for one in judged(tmp_path, tier(gated=[], low=1, high=1)).others)


def test_equivalence_of_the_candidate(tmp_path):
    assert equivalences(tmp_path, reference="a") == (
        {"identical_answers": "PASS", "clear_agreement": "PASS", "mean_kl": "FAIL"},
        4,
    )


def test_a_reference_that_is_not_the_baseline_is_no_level(tmp_path):
    verdicts, _ = equivalences(tmp_path, reference="another arm")
    assert verdicts["identical_answers"] == "INCONCLUSIVE"


def equivalences(folder, *, reference):
    """Verdicts and exit code; the baseline's own answers are those of `reference`."""
    itself = equivalence(level(), (), "itself").model_copy(update={"arm": reference})
    arm(folder, "old", scored=False, equivalence=itself)
    arm(folder, "new", scored=False, equivalence=equivalence(level(kl=0.5)))
    judgement = judged(folder, tier())
    return {one.rule.name: one.verdict for one in judgement.others}, judgement.outcome.exit_code
