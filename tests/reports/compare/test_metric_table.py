"""Directions and units of the table are those of the records."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.composition import packaged_conf
from harness.metrics import summarize
from harness.tier import read_tier, validate_tier
from paths.api import UserError
from reports.compare.metric_table import METRICS
from tests.harness.measurements import Row, measurement

NOT_COMPARED = {
    "achieved_rate",
    "client_lag_p99_ms",
    "client_read_lag_p99_ms",
}  # of the client, not of the path
CONF = Path(packaged_conf())


def test_every_metric_of_a_record_with_a_direction_is_in_the_table():
    metrics, _, _ = summarize(measurement(Row([(20, 1), (40, 3)], sent=0)), gpus=1)
    directed = {name: metric for name, metric in metrics.items() if metric.better != "none"}
    assert len(directed) > 20 and directed.keys() - METRICS.keys() <= NOT_COMPARED
    for name in directed.keys() & METRICS.keys():
        rule = METRICS[name]
        assert (rule.better, rule.unit) == (directed[name].better, directed[name].unit), name


def test_a_metric_without_a_direction_is_never_compared():
    metrics, _, _ = summarize(measurement(Row([(20, 1), (40, 3)], sent=0)), gpus=1)
    assert not {name for name, metric in metrics.items() if metric.better == "none"} & METRICS.keys()


def test_times_are_better_lower_and_rates_higher():
    for name, rule in METRICS.items():
        down = rule.unit in ("ms", "s", "s/tok", "bytes", "nat") or name.startswith("answers_")
        assert rule.better == ("down" if down else "up"), name
        assert rule.margin > 0 and rule.absolute >= 0


@pytest.mark.parametrize(
    ("name", "pairs", "looks"),
    [("smoke", (1, 1), 1), ("pr", (4, 6), 2), ("nightly", (4, 8), 3), ("switch_default", (6, 10), 3)],
)
def test_tiers(name, pairs, looks):
    tier = read_tier(name, [CONF], list(METRICS))
    assert (tier.name, tier.pairs.min, tier.pairs.max, len(tier.pairs.looks)) == (name, *pairs, looks)
    assert tier.alpha == pytest.approx(0.05 / looks)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"gated": ["out_tsp"]}, "unknown metric out_tsp; did you mean out_tps"),
        ({"margins": {"out_tps": 2}}, "a fraction from 0 below 1"),
        ({"margins": {"out_tps": "abc"}}, "tier.margins.out_tps=abc"),
        ({"margins": 3}, "tier.margins=3"),
        ({"pairs": {"min": 4, "max": 3, "step": 1}}, "pairs.max=3 is below pairs.min=4"),
        ({"pairs": {"min": 0, "max": 3, "step": 1}}, "tier.pairs.min=0"),
        ({"inconclusive": "ignore"}, "tier.inconclusive=ignore"),
        ({"extra": 1}, "tier.extra=1"),
    ],
)
def test_a_mistake_in_a_tier_is_one_line(change, said):
    good = {"name": "own", "pairs": {"min": 2, "max": 4, "step": 2}, "gated": ["out_tps"], "floor_days": 14}
    assert validate_tier(good, list(METRICS)).name == "own"
    with pytest.raises(UserError) as error:
        validate_tier(good | change, list(METRICS))
    assert said in str(error.value)


def test_an_unknown_tier_names_the_known_ones(tmp_path):
    with pytest.raises(
        UserError, match="tier=pullrequest: unknown; known: nightly, pr, smoke, switch_default"
    ):
        read_tier("pullrequest", [CONF], list(METRICS))
    (tmp_path / "tier").mkdir()
    (tmp_path / "tier" / "own.yaml").write_text("[1, 2]")
    with pytest.raises(UserError, match="must hold a mapping"):
        read_tier("own", [CONF, tmp_path], list(METRICS))
