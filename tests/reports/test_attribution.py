"""Contributions of a ladder: exact on made-up records, and never a number where an arm is missing."""

import math
from itertools import pairwise

import pytest

from harness.records import Check, Metric
from reports.attribution import TOTAL, Contribution, attribute
from tests.reports.ladders import PATHS, SPEEDS, climb, experiment, metrics, only


def test_each_contribution_is_the_logarithm_of_its_ratio():
    throughput, tpot = only(attribute(experiment(), climb())).ladders
    assert (throughput.metric, tpot.metric) == ("out_tps", "tpot_pooled_ms")
    for ladder in (throughput, tpot):  # TPOT is 4000 / speed here, so its negative logarithm is the same
        for place, one in enumerate(ladder.contributions):
            assert one.by_round == pytest.approx(
                {number: math.log(v[place + 1] / v[place]) for number, v in SPEEDS.items()}, abs=1e-12
            )
        assert [one.switch for one in ladder.contributions] == ["to second", "to third"]
        assert [(one.before, one.after) for one in ladder.contributions] == list(pairwise(PATHS))
        assert ladder.total.by_round == pytest.approx(
            {number: math.log(v[-1] / v[0]) for number, v in SPEEDS.items()}, abs=1e-12
        )
    up, down = throughput.contributions
    assert up.middle == pytest.approx(math.log(200 / 100)) and up.range == pytest.approx(
        (math.log(200 / 110), math.log(210 / 90))
    )
    assert down.middle == pytest.approx(math.log(150 / 200)) and (up.n, up.rounds) == (3, 3)


def test_means_add_up_and_have_a_t_interval():
    (throughput, _) = only(attribute(experiment(), climb())).ladders
    up, down = throughput.contributions
    assert up.mean + down.mean == pytest.approx(throughput.total.mean)
    values = [math.log(200 / 100), math.log(200 / 110), math.log(210 / 90)]
    mean = sum(values) / 3
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / 2)
    half = 2.919986 * spread / math.sqrt(3)  # 95 % point of t with 2 degrees of freedom
    assert up.interval == pytest.approx((mean - half, mean + half), rel=1e-6)


@pytest.mark.parametrize("rounds", [0, 1])
def test_fewer_than_two_rounds_have_no_interval(rounds):
    speeds = {number: SPEEDS[number] for number in range(1, rounds + 1)}
    one = Contribution(
        switch="s",
        before="a",
        after="b",
        rounds=3,
        by_round={number: math.log(v[1] / v[0]) for number, v in speeds.items()},
    )
    assert one.interval is None and (one.mean is None) == (rounds == 0)


@pytest.mark.parametrize("arms", [2, 3, 5, 12])
@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e12])
def test_within_a_round_the_logarithms_add_up_to_the_total(arms, scale):
    paths = [f"p{place}" for place in range(arms)]
    speeds = {
        number: tuple(scale * (1 + (7 * place + 3 * number) % 11) for place in range(arms))
        for number in range(1, 5)
    }
    condition = only(attribute(experiment(4, paths), climb(speeds, paths=paths)))
    for ladder in condition.ladders:
        assert ladder.total.n == 4
        for number, total in ladder.total.by_round.items():
            parts = math.fsum(one.by_round[number] for one in ladder.contributions)
            assert parts == pytest.approx(total, abs=1e-12)


def test_conditions_stay_apart_and_are_named_by_what_differs():
    slower = {number: tuple(value / 2 for value in values) for number, values in SPEEDS.items()}
    records = climb(concurrency=1) + climb(slower, start=9)
    records += climb({1: SPEEDS[1]}, start=18, broken={(1, "third"): {"round": None}})
    conditions = attribute(experiment(), records[:18])
    assert [one.title for one in conditions] == ["concurrency=1", "concurrency=16"]
    assert [one.ladders[0].total.n for one in conditions] == [3, 3]
    # a record that belongs to no round belongs to no ladder
    assert attribute(experiment(), records[-1:]) == []
    assert attribute(experiment(), []) == []


@pytest.mark.parametrize(
    "state", ["FAILED", "TIMEOUT", "OOM", "PATH_MISMATCH", "INVALID", "SKIPPED", "UNSUPPORTED"]
)
def test_an_arm_without_numbers_takes_its_round_from_the_switches_beside_it(state):
    records = climb(broken={(2, "second"): {"state": state, "reason": "it broke"}})
    condition = only(attribute(experiment(), records))
    for ladder in condition.ladders:
        assert [sorted(one.by_round) for one in ladder.contributions] == [[1, 3], [1, 3]]
        assert sorted(ladder.total.by_round) == [1, 2, 3]
    (gap,) = condition.gaps
    assert (gap.round, gap.path, gap.reason) == (2, "second", f"{state}: it broke")
    assert gap.touches == ["to second", "to third"]


@pytest.mark.parametrize(
    ("path", "touches", "rounds"),
    [
        ("first", ["to second", TOTAL], ([1, 2], [1, 2, 3], [1, 2])),
        ("third", ["to third", TOTAL], ([1, 2, 3], [1, 2], [1, 2])),
    ],
)
def test_an_end_that_is_missing_takes_its_round_from_the_total_too(path, touches, rounds):
    condition = only(attribute(experiment(), climb(broken={(3, path): None})))
    ladder = condition.ladders[0]
    found = tuple(sorted(one.by_round) for one in [*ladder.contributions, ladder.total])
    assert found == rounds
    (gap,) = condition.gaps
    assert gap.touches == touches and gap.reason == "no record: the run ended before"


def test_a_metric_without_value_is_a_gap_of_that_metric_alone():
    missing = Metric(value=None, unit="ms", better="down", n=0, reason="every answer has one token")
    zero = Metric(value=0.0, unit="tok/s", better="up", n=9)
    records = climb(
        broken={
            (1, "third"): {"metrics": metrics(150.0, 1.0) | {"tpot_pooled_ms": missing}},
            (2, "third"): {"metrics": metrics(150.0, 1.0) | {"out_tps": zero}},
            (3, "third"): {"metrics": {}},
        }
    )
    condition = only(attribute(experiment(), records))
    throughput, tpot = (ladder.contributions[1] for ladder in condition.ladders)
    assert (sorted(throughput.by_round), sorted(tpot.by_round)) == ([1], [2])
    assert sorted((gap.round, gap.reason) for gap in condition.gaps) == [
        (1, "TPOT: every answer has one token"),
        (2, "output throughput is 0, which has no logarithm"),
        (3, "TPOT: not recorded"),
        (3, "output throughput: not recorded"),
    ]


@pytest.mark.parametrize(
    ("seconds", "clear", "words"),
    [
        ((200, 210, 220), True, "faster in all of 3 rounds"),
        ((50, 60, 70), True, "slower in all of 3 rounds"),
        ((99, 110, 120), False, "not distinguishable from 0 over 3 rounds"),
        ((100, 110, 120), False, "not distinguishable from 0 over 3 rounds"),
        ((100, 100, 100), False, "not distinguishable from 0 over 3 rounds"),
        ((200,), False, "not distinguishable from 0 over 1 round"),
        ((), False, "no round has a value of both arms"),
    ],
)
def test_no_more_is_said_than_the_rounds_show(seconds, clear, words):
    speeds = {number: (100.0, float(second)) for number, second in enumerate(seconds, start=1)}
    records = climb(speeds, paths=PATHS[:2]) or climb(
        {1: (100.0, 1.0)}, paths=PATHS[:2], broken={(1, "second"): None}
    )
    one = only(attribute(experiment(3, PATHS[:2]), records)).ladders[0].contributions[0]
    assert (one.clear, one.words) == (clear, words)


def test_fallbacks_and_failed_checks_count_and_are_named():
    flag = {"checks": {"window": Check(ok=False, detail="short"), "little": Check(ok=True, detail="1 %")}}
    records = climb(
        broken={
            (1, "first"): {"state": "FALLBACK", "reason": "no compiler"},
            (2, "second"): flag,
            (3, "second"): flag,
            (3, "third"): {"state": "FAILED", "reason": "died"} | flag,
        }
    )
    condition = only(attribute(experiment(), records))
    assert condition.cautions == [
        "first ran with a fallback (no compiler): 1 of the 8 cells that count",
        "check window failed: 2 of the 8 cells that count",
    ]
    assert condition.ladders[0].contributions[0].n == 3
