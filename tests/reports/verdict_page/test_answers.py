"""Accuracy of two arms on the page: verdict, scores beside each other, questions that changed sides."""

from __future__ import annotations

import pytest

from harness.accuracy.questions import SCHEMA, QuestionsWriter
from harness.accuracy.score import AccuracyScore, Proportion
from reports.verdict_page import page
from reports.verdict_page.flips import MOST_FLIPS, MOST_LETTERS
from reports.verdict_page.forest import Forest
from tests.reports.conftest import parse_page
from tests.reports.test_report_html import rows_of
from tests.reports.verdict_page.judged import compared_folder, page_of

QUESTIONS = 100


@pytest.fixture(autouse=True)
def no_drawings(monkeypatch):
    monkeypatch.setattr(page, "draw_curves", lambda comparison, names, ranks: ([], ""))
    monkeypatch.setattr(page, "forest", lambda columns, rows: Forest(plots=[], left_out=[]))


def score(correct: int) -> AccuracyScore:
    return AccuracyScore(
        task="arith_gsm",
        part="full",
        concurrency=64,
        shots=5,
        limit=None,
        questions=QUESTIONS,
        answered=QUESTIONS,
        complete=True,
        acc_numeric=Proportion.of(correct, QUESTIONS),
        truncated=1,
        prompts_hash="h",
        task_version="1",
    )


def scored_page(folder, wrong: dict[str, set[int]], answer="the answer is 7"):
    """`wrong`: path → questions that it answers wrongly, in its first launch alone."""

    def change(record):
        if record.pair:
            return record
        return record.model_copy(
            update={"accuracy": [score(QUESTIONS - len(wrong[record.requested["path"]]))]}
        )

    compared_folder(folder, loads=(1,), change=change)
    writer = QuestionsWriter(folder)
    for path, missed in wrong.items():
        rows = [
            dict.fromkeys(SCHEMA.names)
            | {"doc_id": number, "prompt_hash": f"p{number}", "target_number": "8", "answer": answer,
               "numeric_correct": number not in missed, "numeric_parsed": "7", "truncated": False,
               "outcome": "wrong" if number in missed else "correct"}
            for number in range(QUESTIONS)
        ]  # fmt: skip
        ids = {"launch_id": f"P0{path[0]}", "arm_id": path, "cell_id": f"cell{0:012d}", "task": "arith_gsm",
               "part": "full", "shots": 5, "concurrency": 64}  # fmt: skip
        writer.add([{name: value for name, value in row.items() if name not in ids} for row in rows], **ids)
    writer.finish()
    return parse_page(page_of(folder).strip().removeprefix("<!doctype html>"))


def test_scores_verdict_and_flips(tmp_path):
    root = scored_page(tmp_path / "run-1", {"generic_mrv1": {1, 2}, "dsa_mrv2": {2, 3, 4}})
    judged, scores, flips = (rows_of(table) for table in root.by_id("correctness").all("table"))
    accuracy = next(row for row in judged if row[2] == "accuracy")
    assert accuracy[0] == "accuracy" and accuracy[4:6] == ["0.980 fraction", "0.970 fraction"]
    assert accuracy[6].startswith("−1.0 pt [") and accuracy[7] == "100 questions"
    assert scores[0][2].startswith("98.00 % [") and scores[0][4] == "−1.00 pt"
    assert [row[:3] for row in flips] == [
        ["arith_gsm, full, c64, no. 3", "✗ wrong", "8"],
        ["arith_gsm, full, c64, no. 4", "✗ wrong", "8"],
        ["arith_gsm, full, c64, no. 1", "✓ right", "8"],
    ]
    assert "2 questions became wrong and 1 right" in root.by_id("correctness").text
    assert flips[0][3:] == ["(correct) the answer is 7", "(wrong) the answer is 7"]


def test_long_and_hostile_answers_are_cut_and_are_text(tmp_path):
    answer = "x" * MOST_LETTERS + "</td><script>alert(1)</script> is 7"
    root = scored_page(tmp_path / "run-1", {"generic_mrv1": set(), "dsa_mrv2": set(range(63))}, answer)
    flips = rows_of(root.by_id("correctness").all("table")[2])
    assert len(flips) == MOST_FLIPS and len(root.all("script")) == 1
    assert flips[0][4].startswith("(wrong) …x") and flips[0][4].endswith(
        "</td><script>alert(1)</script> is 7"
    )
    assert f"63 questions became wrong and 0 right in the first scoring; {MOST_FLIPS} of them" in root.text


def test_the_same_answers_have_no_list(tmp_path):
    root = scored_page(tmp_path / "run-1", {"generic_mrv1": {1}, "dsa_mrv2": {1}})
    assert root.by_id("correctness").all("details") == []
