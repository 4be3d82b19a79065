"""Scores of an engine on a script, through lm-eval in its real process."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from harness.accuracy.problems import ARITH_TEST, read_problems
from harness.accuracy.prompts import prompt_rules
from harness.accuracy.questions import FILE_NAME, QuestionsWriter, read_questions
from harness.accuracy.scoring import Scorer
from harness.client.endpoint import EngineDied
from paths.api import FinishReason
from tests.accuracy.answering import AnsweringEndpoint
from tests.harness.cells import make_cell

ANSWERS = {each["question"]: each["answer"] for each in read_problems(ARITH_TEST, "file")}


class Scoring:
    """One scoring of the first `limit` questions and what it left behind."""

    def __init__(self, folder: Path, script, *, limit=4, concurrency=2, **endpoint):
        cell = make_cell("accuracy=arith_gsm", f"limit={limit}", "shots=2", f"concurrency={concurrency}")
        self.endpoint = AnsweringEndpoint(prompt_rules(cell.engine), script, **endpoint)
        writer = QuestionsWriter(folder)
        home = folder / "home"
        home.mkdir()
        scorer = Scorer(
            writer=writer, run_id="r", parent_environment={**os.environ, "HOME": str(home)}, prepared={}
        )
        self.progress, self.told = [], []
        self.scored = scorer.score(
            self.endpoint,
            cell,
            concurrency=concurrency,
            launch_id="L000",
            folder=folder,
            on_progress=lambda text, share: self.progress.append((text, share)),
            on_score=self.told.append,
        )
        self.written = list(home.rglob("*"))
        self.parts = read_questions(folder).num_rows
        writer.finish()
        self.rows = read_questions(folder).to_pylist()
        self.file = folder / FILE_NAME

    def by_id(self, part="full"):
        return [row for row in sorted(self.rows, key=lambda row: row["doc_id"]) if row["part"] == part]


def child_of_this_process():
    (child,) = psutil.Process().children()
    return child


def test_right_answers_score_1_and_every_question_has_its_row(tmp_path):
    scoring = Scoring(tmp_path, lambda question, _: f" {ANSWERS[question]}")
    full, first = scoring.scored.scores
    assert (full.concurrency, full.part, first.concurrency, first.part) == (2, "full", 1, "first")
    for score in (full, first):
        assert score.complete and score.reason is None and (score.questions, score.answered) == (4, 4)
        for proportion in (score.acc_numeric, score.acc_strict, score.acc_flexible):
            assert (proportion.value, proportion.n) == (1.0, 4)
        assert score.dsa_active_token_frac == pytest.approx(0.25, abs=0.05)
        assert score.drafts.al.n == 4 and 0 <= score.drafts.c_0.value <= 1
    assert scoring.told == scoring.scored.scores and scoring.scored.fault is None
    assert scoring.endpoint.peak == 2
    assert scoring.progress[-1][1] == 1.0
    assert [row["doc_id"] for row in scoring.by_id()] == [0, 1, 2, 3]
    assert {row["outcome"] for row in scoring.rows} == {"correct"} and len(scoring.rows) == 8
    assert all(row["generated_tokens"] > 0 and row["target_number"] for row in scoring.rows)
    # the same questions at concurrency 1 are asked the same way
    assert [row["prompt_hash"] for row in scoring.by_id()] == [
        row["prompt_hash"] for row in scoring.by_id("first")
    ]
    prompt = scoring.endpoint._encoder.decode(scoring.endpoint.requests[0].prompt_ids.tolist())
    assert prompt.count("Question: ") == 3 and prompt.count("#### ") == 2
    assert scoring.written == []  # lm-eval left nothing in the user's caches


def test_each_way_to_be_not_right_has_its_own_outcome(tmp_path):
    questions = list(ANSWERS)[:8]
    right = [ANSWERS[question] for question in questions]

    def script(question, _):
        number = questions.index(question)
        value = right[number].rpartition("#### ")[2]
        return [
            f" so\n#### ${value}.00\n",  # right for numeric alone
            (f" {right[1]}", FinishReason.LENGTH),  # the number is cut, as far as anybody knows
            (" 2 + 2 = 4 and", FinishReason.LENGTH),
            " no idea",
            "",
            " #### 987654\nQuestion: and?",
            f" #### {value} or #### 3",
            RuntimeError("out of pages"),
        ][number]

    scoring = Scoring(tmp_path, script, limit=8, concurrency=1)
    (score,) = scoring.scored.scores
    outcomes = [row["outcome"] for row in scoring.by_id()]
    assert outcomes == [
        "correct", "truncated", "truncated", "unparsable", "empty", "wrong", "correct", "error",
    ]  # fmt: skip
    assert score.reason == "no verdict: 1 of 8 requests failed; the first said: out of pages"
    assert score.acc_numeric is None and scoring.scored.fault is not None
    assert (score.truncated, score.unparsable, score.empty, score.errors) == (2, 2, 1, 1)
    assert (score.run_on, score.several_markers) == (1, 1)
    first, cut, *_, wrong, several, failed = scoring.by_id()
    assert (first["strict_correct"], first["numeric_correct"]) == (False, True)
    assert cut["truncated"] and cut["strict_correct"] and not cut["numeric_correct"]
    assert wrong["run_on"] and "Question" not in wrong["answer"]
    assert several["several_markers"]
    assert failed["numeric_correct"] is None and failed["error"] == "out of pages"


def interrupt(answered):
    if answered == 3:
        raise KeyboardInterrupt


def test_an_interrupted_scoring_leaves_what_was_answered(tmp_path):
    scoring = Scoring(tmp_path, lambda question, _: ANSWERS[question], before_poll=interrupt)
    full, first = scoring.scored.scores
    assert scoring.scored.interrupted and not full.complete and not first.complete
    assert full.answered == full.acc_numeric.n == len(scoring.rows) and 1 <= full.answered <= 3
    assert first.answered == 0 and "interrupted" in first.reason
    assert scoring.file.is_file() and psutil.Process().children() == []


def test_rows_are_in_the_folder_while_the_scoring_goes_on(tmp_path):
    seen = []

    def look(answered):
        if answered == 29:
            seen.append(read_questions(tmp_path).num_rows)

    Scoring(tmp_path, lambda question, _: ANSWERS[question], limit=30, concurrency=1, before_poll=look)
    assert seen == [25]


@pytest.mark.slow
def test_a_dead_engine_is_no_wrong_answer(tmp_path):
    def die(answered):
        if answered == 3:
            raise EngineDied("oom", "out of memory")

    scoring = Scoring(tmp_path, lambda question, _: ANSWERS[question], before_poll=die)
    full, first = scoring.scored.scores
    assert scoring.scored.died.kind == "oom" and scoring.scored.fault is not None
    assert full.answered >= 1 and full.acc_numeric.value == 1.0 and not full.complete
    assert first.acc_numeric is None and "out of memory" in first.reason
    assert psutil.Process().children() == []


def test_a_killed_lm_eval_leaves_the_engine_idle(tmp_path):
    def script(question, number):
        if number == 3:
            child_of_this_process().send_signal(signal.SIGKILL)
        return ANSWERS[question] if number < 3 else None

    scoring = Scoring(tmp_path, script, limit=50)
    assert "its process ended with code -9" in scoring.scored.failure
    assert scoring.scored.died is None and scoring.endpoint.in_flight == []
    assert len(scoring.endpoint.aborted) == 2
    assert not scoring.scored.scores[0].complete


def test_the_hub_does_not_exist_for_local_questions(tmp_path):
    from harness.accuracy.process import scoring_environment

    parent = {"PATH": "/bin", "HF_TOKEN": "secret", "HF_HOME": "/cache", "HF_HUB_OFFLINE": "0"}
    offline = scoring_environment(parent, offline=True, launch_mark="m")
    assert offline["HF_HUB_OFFLINE"] == offline["HF_DATASETS_OFFLINE"] == "1" and "HF_HOME" not in offline
    online = scoring_environment(parent, offline=False, launch_mark="m")
    assert online["HF_HOME"] == "/cache" and "HF_TOKEN" not in online
