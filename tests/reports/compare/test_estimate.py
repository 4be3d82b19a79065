"""Interval, borrowed variance, sign flips, slot effect, power: against scipy and statsmodels."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from reports.compare.decide import holm
from reports.compare.estimate import from_arms, from_pairs
from reports.compare.floor import Noise
from reports.compare.power import detectable_per_sd
from reports.compare.sign_flip import hodges_lehmann, sign_flip_p

LOSSES = np.array([0.011, 0.022, 0.018, 0.009, 0.025, 0.013])
ALTERNATING = [False, True] * 3


def test_interval_is_that_of_students_t():
    found = from_pairs(LOSSES, ALTERNATING, alpha=0.025, noise=None)
    low, high = stats.ttest_1samp(LOSSES, 0).confidence_interval(0.95)
    assert (found.lo, found.hi) == (pytest.approx(low), pytest.approx(high))
    assert found.p_worse == pytest.approx(stats.ttest_1samp(LOSSES, 0, alternative="greater").pvalue)
    assert (found.df, found.shrinkage) == (5, "none")


def test_few_pairs_borrow_variance_of_the_aa_run():
    noise = Noise(losses=(0.01, -0.01, 0.005, -0.005))
    found = from_pairs(LOSSES[:4], ALTERNATING[:4], alpha=0.05, noise=noise)
    own, lent = LOSSES[:4].var(ddof=1), np.var(noise.losses, ddof=1)
    assert found.sd**2 == pytest.approx((3 * own + 3 * lent) / 6)
    assert found.df == 6 and "3 degrees of freedom" in found.shrinkage


def test_no_more_than_eight_degrees_of_freedom_are_borrowed():
    noise = Noise(losses=tuple(np.linspace(-0.01, 0.01, 21)))
    assert from_pairs(LOSSES[:4], ALTERNATING[:4], alpha=0.05, noise=noise).df == 3 + 8


def test_pairs_that_vary_more_than_the_aa_run_borrow_nothing():
    wild = np.array([0.2, -0.2, 0.3, -0.1])
    found = from_pairs(wild, ALTERNATING[:4], alpha=0.05, noise=Noise(losses=(0.001, -0.001, 0.002)))
    assert (
        found.shrinkage.startswith("refused")
        and found.df == 3
        and found.sd == pytest.approx(wild.std(ddof=1))
    )


def test_eight_pairs_need_no_help():
    losses = np.tile(LOSSES[:4], 2)
    found = from_pairs(losses, [False, True] * 4, alpha=0.05, noise=Noise(losses=(0.01, -0.01, 0.02)))
    assert found.shrinkage == "none" and found.df == 7


def test_slot_effect_is_the_cost_of_running_second():
    losses = np.array([0.03, 0.01, 0.03, 0.01])  # candidate second, first, second, first
    found = from_pairs(losses, [False, True, False, True], alpha=0.05, noise=None)
    assert (
        found.slot_effect == pytest.approx(0.01) and found.mean == pytest.approx(0.02) and found.both_orders
    )
    alone = from_pairs(losses, [False] * 4, alpha=0.05, noise=None)
    assert alone.slot_effect is None and not alone.both_orders


def test_welch_is_that_of_scipy():
    base, cand = np.array([0.0, 0.01, 0.02]), np.array([0.05, 0.055, 0.07, 0.04])
    found = from_arms(base, cand, alpha=0.05)
    welch = stats.ttest_ind(cand, base, equal_var=False)
    interval = welch.confidence_interval(0.90)
    assert (found.lo, found.hi) == (pytest.approx(interval.low), pytest.approx(interval.high))
    assert found.p_worse == pytest.approx(welch.pvalue / 2) and not found.interleaved


def test_no_spread_is_no_division_by_zero():
    same = from_pairs(np.full(4, 0.01), ALTERNATING[:4], alpha=0.05, noise=None)
    assert same.lo == same.hi == same.mean and same.p_worse == 0.0
    assert from_pairs(np.zeros(4), ALTERNATING[:4], alpha=0.05, noise=None).p_worse == 1.0
    assert from_arms(np.zeros(2), np.zeros(2), alpha=0.05).p_worse == 1.0


# the multipliers that the literature of paired designs gives for 80 % power at a one-sided 5 %
@pytest.mark.parametrize(("pairs", "multiplier"), [(3, 2.30), (4, 1.65), (6, 1.19), (8, 0.98), (16, 0.65)])
def test_detectable_effect(pairs, multiplier):
    assert detectable_per_sd(pairs, pairs - 1, 0.05) == pytest.approx(multiplier, abs=0.006)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=7))
def test_sign_flips_are_all_sign_flips(values):
    losses = np.array(values)
    flips = [np.dot(signs, losses) for signs in itertools.product((1, -1), repeat=len(values))]
    slack = 1e-12 * np.abs(losses).sum()
    assert sign_flip_p(losses) == pytest.approx(np.mean(np.array(flips) >= losses.sum() - slack))


def test_sign_flips_of_many_pairs_are_sampled():
    losses = np.random.default_rng(1).normal(0.3, 1, 40)
    exact_t = stats.ttest_1samp(losses, 0, alternative="greater").pvalue
    found = sign_flip_p(losses)
    assert found == pytest.approx(exact_t, abs=0.02)
    assert sign_flip_p(losses) == found  # the same draws every time


def test_hodges_lehmann_shrugs_at_one_wild_pair():
    assert hodges_lehmann(np.array([0.01, 0.01, 0.01, 0.01, 5.0])) == pytest.approx(0.01)


def test_holm_by_hand():
    # 0.01 x 4, 0.02 x 3, 0.04 x 2 and at least the one before, 0.9 x 1; in the order given
    assert holm([0.9, 0.01, 0.04, 0.02]) == pytest.approx([0.9, 0.04, 0.08, 0.06])
    assert holm([]) == [] and holm([0.03]) == [0.03] and holm([0.7, 0.8]) == [1.0, 1.0]


@given(st.permutations([-0.01, 0.004, 0.02, -0.003, 0.007]), st.integers(2, 10))
def test_the_floor_depends_on_no_order_and_falls_with_more_pairs(losses, pairs):
    noise = Noise(losses=tuple(losses))
    assert noise.floor(pairs) == Noise(losses=tuple(sorted(losses))).floor(pairs)
    assert noise.floor(4 * pairs) < noise.floor(pairs)


def test_the_floor_is_about_two_standard_errors():
    losses = tuple(np.random.default_rng(5).normal(0, 0.01, 400))
    assert Noise(losses=losses).floor(4) == pytest.approx(1.96 * 0.01 / 2, rel=0.1)
