"""The rule on estimates made by hand: each condition alone turns the verdict."""

from __future__ import annotations

import dataclasses

import pytest

from reports.compare.decide import decide
from reports.compare.estimate import Estimate

MARGIN = 0.02
LOSING = (0.05,) * 6
HARMLESS = (0.001, -0.001) * 3
ONE_WILD = (0.0, 0.0, 0.0, 0.0, 0.0, 0.3)  # sign flips: 1 of 2
NEARLY = (0.019, 0.019, 0.0195, 0.0195, 0.05, -0.05)


def estimate(losses=HARMLESS, **changes) -> Estimate:
    mean = sum(losses) / len(losses)
    given = {
        "n": len(losses),
        "interleaved": True,
        "alpha": 0.025,
        "mean": mean,
        "sd": 0.01,
        "se": 0.004,
        "df": 5.0,
    }
    given |= {"lo": mean - 0.008, "hi": mean + 0.008, "p_worse": 0.5, "detectable": 0.02, "losses": losses}
    return Estimate(**(given | {"sign_flip_worse": 0.01} | changes))


def verdict(one: Estimate, *, floor=0.001, fewest=4):
    return decide(one, margin=MARGIN, floor=floor, why_no_floor="no A/A run", fewest=fewest)


def test_clean_cases():
    assert verdict(estimate()).verdict == "PASS"
    assert verdict(estimate(LOSING)).verdict == "FAIL"
    assert verdict(estimate(tuple(-x for x in LOSING))).verdict == "IMPROVED"


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (estimate(n=3), "3 of at least 4 pairs"),
        (estimate(both_orders=False), "ran first in every pair"),
        (estimate(detectable=0.031), "underpowered: the test sees 1.6 times the margin"),
        (estimate(interleaved=False), "not interleaved"),
        (estimate(hi=0.021), "the interval reaches the margin"),
        (estimate(NEARLY, hi=0.0199), "heavy_tail: sign flips"),
        (estimate(LOSING, lo=-0.001), "the loss may be noise"),
        (estimate(LOSING, sign_flip_worse=0.06), "heavy_tail: sign-flip p 0.060"),
        (estimate(LOSING, both_orders=False), "ran first in every pair"),
        (estimate(LOSING, n=3), "3 of at least 4 pairs"),
    ],
)
def test_what_leaves_it_open(one, said):
    found = verdict(one)
    assert found.verdict == "INCONCLUSIVE" and said in found.reason


def test_no_floor_refuses_a_pass_and_no_fail():
    assert "no noise floor: no A/A run" in verdict(estimate(), floor=None).reason
    assert verdict(estimate(LOSING), floor=None).verdict == "FAIL"


def test_too_little_power_and_separate_runs_refuse_no_fail():
    assert verdict(estimate(LOSING, detectable=1.0)).verdict == "FAIL"
    assert verdict(estimate(LOSING, interleaved=False)).verdict == "FAIL"


def test_sign_flips_are_asked_from_six_pairs_on():
    few = dataclasses.replace(estimate(LOSING), n=5, sign_flip_worse=0.06)
    assert verdict(few).verdict == "FAIL"
    assert estimate(ONE_WILD).sign_flip_within(0.0) > 0.5


def test_a_loss_within_the_margin_is_no_fail_however_sure():
    assert verdict(estimate((0.01,) * 6)).verdict == "PASS"
    assert verdict(estimate((0.019,) * 6, hi=0.025)).verdict == "INCONCLUSIVE"


def test_a_gain_within_the_margin_is_a_pass():
    assert verdict(estimate((-0.01,) * 6)).verdict == "PASS"
    assert verdict(estimate((-0.05,) * 6, hi=0.001)).verdict == "PASS"
