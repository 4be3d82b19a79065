from __future__ import annotations

import math

import numpy as np
import pytest

from harness.workload.arrival import arrival_times


def draw(n, *, burstiness=1.0, rate=10.0, seed=0):
    return arrival_times(n, rate=rate, burstiness=burstiness, rng=np.random.default_rng(seed))


def test_constant_arrivals():
    assert draw(4, burstiness=math.inf).tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])


@pytest.mark.parametrize("burstiness", [0.05, 0.5, 1.0, 7.0, math.inf])
@pytest.mark.parametrize("n", [1, 63, 1000])
def test_a_finite_schedule_offers_the_configured_rate(n, burstiness):
    times = draw(n, burstiness=burstiness)
    assert len(times) == n
    assert times[-1] == pytest.approx(n / 10.0)
    assert (np.diff(times) >= 0).all()
    assert times[0] >= 0


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_spread_of_their_gamma_distribution(burstiness):
    gaps = np.diff(draw(100_000, burstiness=burstiness))
    # coefficient of variation of Gamma(shape) is 1 / sqrt(shape)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.03)


def test_arrivals_are_deterministic_in_the_seed():
    assert draw(100).tolist() == draw(100).tolist()
    assert draw(100).tolist() != draw(100, seed=1).tolist()


def test_no_arrivals():
    assert draw(0).size == 0
    assert draw(0, burstiness=math.inf).size == 0


def test_gaps_that_underflow_still_arrive():
    assert draw(3, burstiness=1e-9).tolist() == pytest.approx([0.3, 0.3, 0.3])


@pytest.mark.parametrize("bad", [{"n": -1}, {"n": 1, "rate": 0.0}, {"n": 1, "burstiness": 0.0}])
def test_bad_arguments_are_refused(bad):
    with pytest.raises(ValueError, match="need n >= 0"):
        draw(**bad)
