"""Paired non-inferiority: worked numbers, and what is not to be compared."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.errors import ExitCode
from reports.compare.accuracy import (
    Answer,
    TaskAnswers,
    compare_accuracy,
    discordance_excess_p,
    mcnemar_p,
    paired_loss,
)
from reports.compare.finding import Finding
from reports.compare.words import Verdict

CONTEXT = Finding(gate="accuracy", cell_id="1", cell="gsm8k", verdict=Verdict.PASS, gated=True)


def answers(right, n, **more):
    """n questions; `right`: the numbers of those that are right."""
    return {f"q{i:05d}": Answer(correct=i in right, **more) for i in range(n)}


def arm(*repeats, versions=("1",)):
    return TaskAnswers(repeats=repeats, versions=frozenset(versions))


def accuracy_of(baseline, candidate):
    found = compare_accuracy(CONTEXT, baseline, candidate)
    return found[0], {one.rule.name: one for one in found}


def flipped(n, worse, better, base_right=None):
    """Base right on the first part; `worse` questions become wrong, `better` become right."""
    base = set(range(n - better)) if base_right is None else base_right
    cand = (base - set(range(worse))) | set(range(n - better, n))
    return arm(answers(base, n)), arm(answers(cand, n))


def test_the_same_answers_pass():
    base = arm(answers(set(range(1200)), 1319))
    found, every = accuracy_of(base, base)
    assert found.verdict is Verdict.PASS and found.baseline == pytest.approx(1200 / 1319)
    assert {one.verdict for one in every.values()} == {Verdict.PASS} and len(every) == 3
    assert "McNemar's exact p 1" in found.notes[0]


def test_sixty_flips_one_way_and_twenty_the_other_fail():
    found, _ = accuracy_of(*flipped(1319, 60, 20))
    assert found.verdict is Verdict.FAIL and found.exit_code is ExitCode.CORRECTNESS
    assert found.estimate.mean == pytest.approx(40 / 1319) and found.estimate.signs == (60, 1239, 20)
    assert mcnemar_p(worse=60, better=20) < 1e-4


def test_two_answers_of_250_are_no_evidence():
    found, _ = accuracy_of(*flipped(250, 4, 2))
    assert found.verdict is Verdict.INCONCLUSIVE and mcnemar_p(worse=4, better=2) > 0.5


def test_the_standard_error_is_that_of_the_formula():
    base, cand = np.zeros(1319), np.zeros(1319)
    cand[:30], base[-10:] = 1.0, 1.0  # 30 became wrong, 10 right
    found, n = paired_loss(base, cand), 1321
    assert found.mean == pytest.approx(20 / 1319)
    assert found.se == pytest.approx(math.sqrt(30.5 + 10.5 - 20**2 / n) / n)
    assert found.hi - found.mean == pytest.approx(1.645 * found.se, rel=1e-3)


def test_repeats_are_averaged_per_question():
    rng = np.random.default_rng(3)
    n = 1319
    repeats = [answers(set(np.flatnonzero(rng.random(n) < 0.9)), n) for _ in range(4)]
    found, _ = accuracy_of(arm(*repeats[:2]), arm(*repeats[2:]))
    d = np.array(
        [
            sum(r[k].correct for r in repeats[:2]) / 2 - sum(r[k].correct for r in repeats[2:]) / 2
            for k in sorted(repeats[0])
        ]
    )
    assert found.estimate.mean == pytest.approx(d.mean())
    assert found.estimate.se == pytest.approx(d.std(ddof=1) / n**0.5, rel=0.01)  # half a question per cell
    assert "the baseline with itself" in found.notes[1]


@pytest.mark.parametrize(("n", "difference"), [(1, 0.5), (40, 0.5), (1, 1.0), (1, 0.0)])
def test_answers_that_all_differ_alike_have_an_interval(n, difference):
    found = paired_loss(np.zeros(n), np.full(n, difference))
    assert 0 < found.se < math.inf and found.lo < found.mean < found.hi and 0 < found.p_worse < 1


def test_more_discordant_answers_than_with_itself_are_told():
    base = answers(set(range(1200)), 1319)
    other = answers(set(range(50, 1200)) | set(range(1250, 1300)), 1319)  # 50 each way: no loss
    found, _ = accuracy_of(arm(base, base), arm(other))
    assert found.estimate.mean == 0 and "more than the baseline with itself (0.0%" in found.notes[1]
    assert discordance_excess_p(30, 1319, own=28, own_n=1319) > 0.3


def test_answers_without_a_number_and_cut_ones_are_judged_too():
    n = 1319
    base = arm(answers(set(range(n)), n))
    mute = arm(
        {
            k: Answer(correct=True, without_number=i < 60, truncated=i < 2)
            for i, k in enumerate(base.repeats[0])
        }
    )
    _, every = accuracy_of(base, mute)
    assert every["answers_without_number"].verdict is Verdict.FAIL
    assert every["answers_truncated"].verdict is Verdict.PASS and every["accuracy"].verdict is Verdict.PASS


def test_failed_requests_are_left_out_and_told():
    n = 1000
    base = answers(set(range(n)), n)
    cand = dict(base) | {f"q{i:05d}": Answer(correct=None) for i in range(20)}
    found, _ = accuracy_of(arm(base), arm(cand))
    assert found.verdict is Verdict.PASS and found.estimate.n == 980 and "20 questions" in found.notes[0]


def test_too_many_failed_requests_are_no_loss_of_accuracy():
    base = answers(set(range(100)), 100)
    (found,) = compare_accuracy(CONTEXT, arm(base), arm({k: Answer(correct=None) for k in base}))
    assert found.verdict is Verdict.INVALID and found.exit_code is ExitCode.INVALID
    assert "100 of 100 questions" in found.reason
    some = base | {f"q{i:05d}": Answer(correct=None) for i in range(15)}  # the others are all right
    (found,) = compare_accuracy(CONTEXT, arm(base), arm(some))
    assert found.verdict is Verdict.INVALID and "15 of 100 questions" in found.reason


def test_a_subset_is_never_compared_with_the_full_set():
    (found,) = compare_accuracy(CONTEXT, arm(answers({1}, 1319)), arm(answers({1}, 250)))
    assert found.verdict is Verdict.NOT_COMPARABLE and "1069 only in the baseline" in found.reason


def test_another_scoring_is_not_comparable():
    one = answers({1}, 10)
    (found,) = compare_accuracy(CONTEXT, arm(one), arm(one, versions=("2",)))
    assert found.verdict is Verdict.NOT_COMPARABLE and "version 1 against 2" in found.reason


@pytest.mark.parametrize(("share", "margin_pp"), [(0.01, 0.68), (0.02, 0.97), (0.04, 1.37)])
def test_detectable_loss_with_1319_questions(share, margin_pp):
    half = round(1319 * share / 2)
    found, _ = accuracy_of(*flipped(1319, half, half))
    assert 100 * found.estimate.detectable == pytest.approx(margin_pp, abs=0.05)  # half a question more
