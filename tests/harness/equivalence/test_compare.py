"""Answers of two arms, compared: divergences, agreement and distances worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from harness.equivalence.compare import Answers, Scores, compare, divergence, first_divergence
from harness.equivalence.score import NOT_NUMBERS


def ids(*values):
    return np.array(values, dtype=np.int32)


def scores(*rows, given=0):
    """Each row: {token: probability}, best first; the log-prob of the `given`-th of each row is taken."""
    top = [list(row) for row in rows]
    logs = [[math.log(p) for p in row.values()] for row in rows]
    return Scores(
        logprob=np.array([row[given] for row in logs]), top_ids=np.array(top, dtype=np.int32),
        top_logprobs=np.array(logs),
    )  # fmt: skip


def answers(*tokens, scored=None, reason=None, concurrency=1):
    return Answers(
        concurrency=concurrency, tokens=[ids(*one) for one in tokens], scores=scored, reason=reason
    )


@pytest.mark.parametrize(
    ("one", "other", "at"),
    [((1, 2, 3), (1, 2, 3), None), ((1, 2, 3), (1, 9, 3), 1), ((1, 2), (1, 2, 3), 2), ((), (1,), 0),
     ((), (), None), ((5,), (6,), 0)],
)  # fmt: skip
def test_first_divergence(one, other, at):
    assert first_divergence(ids(*one), ids(*other)) == at
    assert first_divergence(ids(*other), ids(*one)) == at


def test_identical_answers():
    same = answers((1, 2), (3, 4), scored=[scores({1: 0.6, 2: 0.3}, {2: 0.9, 1: 0.05})] * 2)
    level = compare(same, same, near_tie=0.1)
    assert (level.greedy.identical, level.greedy.share_identical) == (2, 1.0)
    assert level.greedy.first_div == [None, None] and level.greedy.first_div_median is None
    forced = level.forced
    assert (forced.positions, forced.top1_agree, forced.clear_agree) == (4, 1.0, 1.0)
    assert forced.mean_abs_dlogprob == forced.max_abs_dlogprob == forced.mean_kl == forced.max_kl == 0


def test_fault_147_a_divergence_at_a_near_tie_is_told_from_one_at_a_clear_choice():
    tie, clear = {1: 0.5, 2: 0.5 - 1e-8}, {1: 0.9, 2: 0.05}
    scored = [scores(clear, tie), scores(clear, clear), scores(clear, clear)]
    reference = answers((1, 1), (1, 1), (1, 1), scored=scored)
    other = answers((1, 2), (2, 2), (1, 2), scored=scored)
    greedy = compare(reference, other, near_tie=1e-4).greedy
    assert greedy.first_div == [1, 0, 1] and greedy.identical == 0 and greedy.near_ties == 1
    assert greedy.first_div_median == 1
    assert greedy.margin_max == pytest.approx(math.log(0.9 / 0.05))


def test_without_scores_of_the_reference_nobody_knows_what_a_divergence_means():
    greedy = compare(answers((1,), reason="refused"), answers((2,)), near_tie=0.1).greedy
    assert greedy.first_div == [0] and greedy.near_ties is None and greedy.margin_max is None


def test_agreement_is_also_told_of_clear_choices_alone():
    tie, flipped, clear = {1: 0.48, 2: 0.47}, {2: 0.48, 1: 0.47}, {1: 0.9, 2: 0.05}
    reference = answers((1, 1), scored=[scores(tie, clear)])
    other = answers((1, 1), scored=[scores(flipped, clear)])
    forced = compare(reference, other, near_tie=0.1).forced
    assert (forced.top1_agree, forced.clear_positions, forced.clear_agree) == (0.5, 1, 1.0)
    nothing_clear = compare(reference, other, near_tie=10.0).forced
    assert nothing_clear.clear_agree is None and nothing_clear.clear_positions == 0


def test_distances_of_the_given_tokens():
    reference = answers((1, 1), scored=[scores({1: 0.5, 2: 0.4}, {1: 0.5, 2: 0.4})])
    other = answers((1, 1), scored=[scores({1: 0.25, 2: 0.2}, {1: 0.5, 2: 0.4})])
    forced = compare(reference, other, near_tie=0.1).forced
    assert forced.max_abs_dlogprob == pytest.approx(math.log(2))
    assert forced.mean_abs_dlogprob == pytest.approx(math.log(2) / 2)
    assert forced.max_kl == pytest.approx(0.9 * math.log(2) + 0.1 * math.log(0.1 / 0.55))


def test_divergence_of_whole_distributions_is_the_kullback_leibler_divergence():
    rng = np.random.default_rng(0)
    p, q = rng.dirichlet(np.ones(8)), rng.dirichlet(np.ones(8))

    def whole(values):
        order = np.argsort(-values)
        logs = np.log(values[order])[None]
        return Scores(logprob=logs[:, 0], top_ids=order[None].astype(np.int32), top_logprobs=logs)

    exact = float((p * np.log(p / q)).sum())
    assert divergence(whole(p), whole(q))[0] == pytest.approx(exact, abs=1e-6)
    assert divergence(whole(p), whole(p))[0] == pytest.approx(0, abs=1e-9)


def test_best_tokens_that_the_other_does_not_name_are_a_distance():
    """Two arms without a common token are far apart, not at 0."""
    one, other = scores({1: 0.5, 2: 0.4}), scores({7: 0.3, 8: 0.01})
    assert divergence(one, other)[0] > 2


@pytest.mark.parametrize("k", [1, 2, 20])
def test_a_distance_is_never_negative(k):
    rng = np.random.default_rng(k)
    for _ in range(50):
        tables = []
        for _ in range(2):
            values = np.sort(rng.dirichlet(np.full(40, 0.3)))[::-1][:k]
            top = rng.permutation(40)[:k].astype(np.int32)
            logs = np.log(np.maximum(values, 1e-12))[None]
            tables.append(Scores(logprob=logs[:, 0], top_ids=top[None], top_logprobs=logs))
        assert divergence(*tables)[0] >= 0


def test_scores_that_are_absent_or_no_numbers_have_a_reason():
    scored = [scores({1: 0.9, 2: 0.05})]
    good = answers((1,), scored=scored)
    refused = compare(good, answers((1,), reason="the engine refused"), near_tie=0.1)
    assert refused.forced is None and refused.reason == "the engine refused" and refused.greedy.identical == 1
    nan = Scores(logprob=np.array([np.nan]), top_ids=scored[0].top_ids, top_logprobs=scored[0].top_logprobs)
    broken = compare(good, answers((1,), scored=[nan]), near_tie=0.1)
    assert broken.forced is None and broken.reason == NOT_NUMBERS


def test_empty_answers_are_counted():
    good = answers((1,), (2,), scored=[scores({1: 0.9, 2: 0.05}), scores({2: 0.9, 1: 0.05})])
    level = compare(good, answers((), (2,), reason="nothing to score"), near_tie=0.1)
    assert level.greedy.empty == 1 and level.greedy.first_div == [0, None]
