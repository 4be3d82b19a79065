"""What answers add up to, and when there is no verdict."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy.stats import binomtest

from harness.accuracy.score import AccuracyScore, Proportion, draft_score, summarize_answers
from harness.accuracy.spec import FULL, Prepared, Stage
from harness.accuracy.words import score_faults, score_notes, score_words
from paths.api import Counters

PREPARED = Prepared(
    task="arith_gsm", questions=20, longest_prompt=9, max_gen_toks=256, prompts_hash="h", version="v"
)


def row(outcome="correct", **changes):
    right = outcome == "correct"
    return {
        "strict_correct": right, "flexible_correct": right, "numeric_correct": right, "outcome": outcome,
        "truncated": outcome == "truncated", "unparsable": outcome in ("unparsable", "empty"),
        "run_on": False, "several_markers": False, "generated_tokens": 10,
        "verifications": None, "drafted": None, "accepted": None, "first_accepted": None,
        "error": "lost" if outcome == "error" else None,
    } | changes  # fmt: skip


def score(rows, *, ended=None, before=None, after=None, limit=None):
    stage = Stage(task="arith_gsm", concurrency=64, limit=limit, part=FULL)
    return summarize_answers(
        stage, rows, shots=5, prepared=PREPARED, seconds=1.0, before=before, after=after, ended=ended
    )


@given(st.integers(1, 300), st.data())
def test_the_interval_is_wilsons(n, data):
    correct = data.draw(st.integers(0, n))
    found, wanted = Proportion.of(correct, n), binomtest(correct, n).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((wanted.low, wanted.high), abs=1e-9)
    assert 0 <= found.low <= found.value <= found.high <= 1


def test_nothing_asked_has_no_share():
    assert Proportion.of(0, 0).value is None


@pytest.mark.parametrize(("failed", "judged"), [(0, True), (1, True), (2, False), (10, False)])
def test_failed_requests_are_no_wrong_answers(failed, judged):
    found = score([row("error")] * failed + [row()] * (10 - failed))
    assert (found.acc_numeric is not None) == judged
    if judged:
        assert (found.acc_numeric.value, found.acc_numeric.n) == (1.0, 10 - failed)
    else:
        assert f"{failed} of 10 requests failed; the first said: lost" in found.reason
    assert found.errors == failed and (found.first_error == "lost") == (failed > 0)


def test_answers_that_are_none_count_as_not_right_and_are_counted():
    outcomes = ["correct"] * 6 + ["wrong", "truncated", "unparsable", "empty"]
    found = score([row(outcome) for outcome in outcomes])
    assert (found.acc_numeric.correct, found.acc_numeric.n) == (6, 10)
    assert (found.truncated, found.unparsable, found.empty) == (1, 2, 1)
    assert found.questions == 20 and score([row()] * 3, limit=3).questions == 3


def test_a_stop_before_the_end_is_said():
    found = score([row()] * 5, ended="interrupted")
    assert found.acc_numeric.value == 1.0 and not found.complete
    assert "stopped after 5 of 20" in score_words(found) and score_faults([found])
    assert "interrupted" in score([], ended="interrupted").reason


def test_many_cut_answers_are_a_fault_and_few_are_none():
    assert "4 of 20 answers were cut" in score_faults([score([row()] * 16 + [row("truncated")] * 4)])[0]
    assert score_faults([score([row()] * 18 + [row("truncated")] * 2)]) == []


@pytest.mark.parametrize(("sparse", "said"), [(49, True), (50, False), (100, False)])
def test_a_score_that_did_not_exercise_sparsity_says_so(sparse, said):
    before = Counters(decode_tokens=7, decode_tokens_sparse=7)
    found = score([row()], before=before, after=Counters(decode_tokens=107, decode_tokens_sparse=7 + sparse))
    assert found.dsa_active_token_frac == sparse / 100
    assert any("did not exercise sparsity" in note for note in score_notes([found])) == said
    assert score_notes([found], selects=False) == []


def test_acceptance_is_summed_over_answers():
    rows = [
        row(verifications=4, drafted=12, accepted=8, first_accepted=3),
        row(verifications=6, drafted=18, accepted=10, first_accepted=6),
        row(verifications=0, drafted=0, accepted=0, first_accepted=0),
    ]
    found = draft_score(rows)
    assert found.al.value == pytest.approx(1 + 18 / 10) and found.al.n == 10
    assert (found.c_0.value, found.c_0.n) == (0.9, 10) and found.draft_rate.value == 0.6
    assert found.c_0.ci95[0] < 0.9 < found.c_0.ci95[1]
    assert draft_score([row()]) is None and score([row()]).drafts is None


def test_counters_that_are_lists_are_subtracted_by_place():
    after = Counters(decode_tokens=1, accepted_at=[5, 3], verified_at=[6, 6])
    found = score([row()], before=Counters(), after=after)
    assert found.counters["accepted_at"] == [5, 3] and found.counters["verified_at"] == [6, 6]


def test_a_score_has_values_or_a_reason():
    with pytest.raises(ValidationError, match="a reason for having none"):
        AccuracyScore(
            task="gsm8k",
            part=FULL,
            concurrency=1,
            shots=5,
            limit=None,
            questions=1,
            answered=0,
            complete=True,
        )


@pytest.mark.parametrize("changes", [{"value": 5.0}, {"correct": 9}, {"n": 0}, {"value": None}])
def test_a_share_that_cannot_be_is_refused(changes):
    sound = Proportion.of(6, 8).model_dump()
    with pytest.raises(ValidationError):
        Proportion.model_validate(sound | changes)
