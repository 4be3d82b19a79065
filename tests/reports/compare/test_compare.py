"""The rule, row by row: each verdict and the condition that it hangs on."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import ExitCode
from reports.compare.cells import NOT_A_NUMBER
from reports.compare.effects import absolute_of, change_percent, signed
from reports.compare.floor import NoiseFloor
from reports.compare.metric_table import METRICS
from reports.compare.words import Verdict
from tests.reports.compare.arms import (
    QUIET,
    broken,
    cell,
    compare_cells,
    compare_values,
    floor_for,
    launch,
    noisy,
    tier,
)

BASE = [100.0, 100.4, 99.7, 100.1, 99.9, 100.2]


def scaled(factor: float, n: int = 4) -> list[float]:
    """The baseline's values with a loss and a little noise of their own."""
    return [value * factor * (1 + wiggle) for value, wiggle in zip(BASE[:n], QUIET, strict=False)]


def test_the_same_is_a_pass():
    found = compare_values(BASE[:4], scaled(1.0))
    assert found.verdict is Verdict.PASS and found.exit_code is ExitCode.OK


def test_a_loss_over_the_margin_is_a_fail():
    found = compare_values(BASE[:4], scaled(0.95))
    assert found.verdict is Verdict.FAIL and found.exit_code is ExitCode.REGRESSION
    assert found.change_pct == pytest.approx(-5, abs=0.3)


def test_a_gain_over_the_margin_is_improved():
    assert compare_values(BASE[:4], scaled(1.05)).verdict is Verdict.IMPROVED
    assert compare_values(BASE[:4], scaled(1.01)).verdict is Verdict.PASS  # a gain, but within the margin


@pytest.mark.parametrize(
    ("metric", "factor", "verdict"),
    [("tpot_pooled_ms", 1.05, "FAIL"), ("tpot_pooled_ms", 0.95, "IMPROVED"), ("out_tps", 0.95, "FAIL")],
)
def test_direction_is_that_of_the_table(metric, factor, verdict):
    assert compare_values(BASE[:4], scaled(factor), metric=metric).verdict == verdict


@given(st.sampled_from(sorted(METRICS)), st.floats(1.01, 3.0))
def test_above_zero_always_means_worse(metric, factor):
    rule = METRICS[metric]
    before, after = signed(rule, [0.5, 0.5 * factor])
    assert (after > before) == (rule.better == "down")


def test_a_significant_loss_within_the_margin_is_no_fail():
    # 10, 10.1, 9.9, 10 against 10.2, 10.3, 10.1, 10.2: significant, but small; the margin is 5 %
    found = compare_values(
        [10, 10.1, 9.9, 10],
        [10.2, 10.3, 10.1, 10.2],
        metric="tpot_pooled_ms",
        tier=tier(gated=["tpot_pooled_ms"], margins={"tpot_pooled_ms": 0.05}),
    )
    assert found.estimate.lo > 0 and found.verdict is Verdict.PASS


def test_a_large_loss_that_may_be_noise_is_inconclusive():
    found = compare_values([10, 10.1, 9.9, 10], [9, 13, 10, 14], metric="tpot_pooled_ms")
    assert found.change_pct > 5 and found.verdict is Verdict.INCONCLUSIVE


def test_the_noise_floor_widens_the_margin():
    loud = tuple(10 * x for x in QUIET)
    found = compare_values(BASE[:4], scaled(0.975), floor=floor_for("c16", losses=loud))
    assert found.margin == found.floor > math.log1p(0.02) and found.verdict is not Verdict.FAIL
    assert any("too noisy" in note for note in found.notes)
    assert compare_values(BASE[:4], scaled(0.975)).verdict is Verdict.FAIL  # on a quiet machine


def test_without_a_floor_there_is_no_pass_but_a_fail():
    nothing = NoiseFloor(problem="no A/A run on this machine")
    found = compare_values(BASE[:4], scaled(1.0), floor=nothing)
    assert found.verdict is Verdict.INCONCLUSIVE and "no noise floor: no A/A run" in found.reason
    assert compare_values(BASE[:4], scaled(0.9), floor=nothing).verdict is Verdict.FAIL
    short = floor_for("c16", losses=QUIET[:2])
    assert "2 usable pairs" in compare_values(BASE[:4], scaled(1.0), floor=short).reason


def test_too_little_power_refuses_a_pass_but_no_fail():
    # the pairs are better by luck; the A/A run says what they are worth
    loud = floor_for("c16", losses=(-0.05, 0.05, 0.04, -0.04, 0.06, -0.06))
    found = compare_values(BASE[:4], scaled(1.05), floor=loud)
    assert found.verdict is Verdict.INCONCLUSIVE and found.reason.startswith("underpowered")
    assert compare_values(BASE[:4], [70.0] * 4, floor=loud).verdict is Verdict.FAIL


def test_one_pair_proves_nothing():
    found = compare_values([100], [50], tier=tier(low=1, high=1))
    assert found.verdict is Verdict.INCONCLUSIVE and "one pair proves nothing" in found.reason


def test_fewer_pairs_than_planned_decide_nothing():
    found = compare_values(BASE[:3], scaled(0.5, 3))
    assert found.verdict is Verdict.INCONCLUSIVE and found.reason == "3 of at least 4 pairs"


def test_alpha_is_shared_by_the_planned_looks():
    assert tier().alpha == pytest.approx(0.025) and tier(low=4, high=10).alpha == pytest.approx(0.0125)
    assert tier(low=6, high=6).alpha == 0.05 and tier(low=4, high=7).pairs.looks == [4, 6, 7]
    found = compare_values(BASE[:4], scaled(0.95))
    assert found.estimate.alpha == pytest.approx(0.025)


def test_heavy_tail_is_no_fail():
    # one pair of six lost everything: the t test on borrowed variance would be impressed
    candidate = [*(value * 1.0 for value in BASE[:5]), BASE[5] * 0.55]
    losses = (-0.2, 0.2, 0.25, -0.25, 0.1, -0.1)
    found = compare_values(BASE, candidate, floor=floor_for("c16", losses=losses))
    assert found.verdict is Verdict.INCONCLUSIVE


def test_sign_flips_take_back_a_fail_of_six_pairs():
    candidate = [100.1, 100.5, 99.8, 90.0, 88.0, 92.0]
    found = compare_values(BASE, candidate, floor=NoiseFloor(problem="none"))
    assert found.estimate.sign_flip_worse > 0.05
    assert found.verdict is Verdict.INCONCLUSIVE


def test_one_arm_always_first_decides_nothing():
    b = cell("b", [launch("b", pair, value, first=True) for pair, value in enumerate(BASE[:4])])
    c = cell("c", [launch("c", pair, value, first=False) for pair, value in enumerate(scaled(0.8))])
    found = compare_cells([b], [c], tier=tier()).findings[0]
    assert found.verdict is Verdict.INCONCLUSIVE and "ran first in every pair" in found.reason


def test_an_absolute_floor_keeps_tiny_values_from_failing():
    fast = [0.10, 0.101, 0.1, 0.099]
    slow = [value * 1.2 for value in fast]  # + 0.02 ms of a floor of 0.05 ms
    assert compare_values(fast, slow, metric="tpot_pooled_ms").verdict is Verdict.PASS
    assert compare_values(fast, [v * 2 for v in fast], metric="tpot_pooled_ms").verdict is Verdict.FAIL
    rule = METRICS["tpot_pooled_ms"]
    assert 0.1 * math.expm1(absolute_of(rule, 0.1)) == pytest.approx(rule.absolute)


def test_holm_takes_back_a_weak_alarm_among_many_cells():
    names = [f"c{n}" for n in range(30)]
    base = [cell("b", BASE[:4], cell_id=name) for name in names]
    weak = [cell("c", scaled(0.97) if name == "c7" else scaled(1.0), cell_id=name) for name in names]
    loud = floor_for(*names, losses=tuple(6 * x for x in QUIET))
    alone = compare_cells(base[7:8], weak[7:8], tier=tier(), floor=loud).findings[0]
    assert alone.verdict is Verdict.FAIL
    among = next(
        one for one in compare_cells(base, weak, tier=tier(), floor=loud).findings if one.cell == "c7"
    )
    assert among.estimate.p_worse < among.estimate.alpha < among.p_holm
    assert among.verdict is Verdict.INCONCLUSIVE and "30 verdicts" in among.reason


def test_metrics_that_are_not_gated_weaken_no_alarm():
    shown = {f"{stem}_p50_ms": 5.0 for stem in ("ttft", "tpot", "e2e", "itl")}
    base, cand = ([{"out_tps": v} | shown for v in values] for values in (BASE[:4], scaled(0.95)))
    found = compare_cells([cell("b", base)], [cell("c", cand)], tier=tier()).findings
    judged = [one for one in found if one.estimate is not None]
    assert len(judged) == 5 and [one.rule.name for one in judged if one.p_holm is not None] == ["out_tps"]
    (alarm,) = (one for one in judged if one.gated)
    assert alarm.p_holm == pytest.approx(alarm.estimate.p_worse) and alarm.verdict is Verdict.FAIL


def test_one_bad_cell_of_many_fails():
    names = [f"c{n}" for n in range(19)]
    base = [cell("b", BASE[:4], cell_id=name) for name in names]
    cand = [cell("c", scaled(0.5) if name == "c3" else scaled(1.0), cell_id=name) for name in names]
    failed = [one for one in compare_cells(base, cand, tier=tier()).findings if one.verdict is Verdict.FAIL]
    assert [one.cell for one in failed] == ["c3"]


class TestNotInterleaved:
    def test_never_a_pass(self):
        found = compare_values(BASE[:4], scaled(1.1), interleaved=False)
        assert found.verdict is Verdict.INCONCLUSIVE and "not interleaved" in found.reason
        assert "not interleaved" in found.notes

    def test_a_fail_is_found(self):
        assert compare_values(BASE[:4], scaled(0.9), interleaved=False).verdict is Verdict.FAIL

    def test_two_launches_per_arm_are_needed(self):
        found = compare_values(BASE[:1], scaled(0.5, 3), interleaved=False)
        assert found.verdict is Verdict.INCONCLUSIVE and "proves nothing" in found.reason

    def test_nearly_all_cells_alike_is_suspicious(self):
        names = [f"c{n}" for n in range(10)]
        base = [cell("b", BASE[:3], cell_id=name) for name in names]
        all_worse = [cell("c", scaled(0.92, 3), cell_id=name) for name in names]
        notes = compare_cells(base, all_worse, tier=tier(), interleaved=False).notes
        assert len(notes) == 1 and "suspect the machine" in notes[0]
        one_worse = [cell("c", scaled(0.92 if n == 4 else 1.0, 3), cell_id=f"c{n}") for n in range(10)]
        found = compare_cells(base, one_worse, tier=tier(), interleaved=False)
        assert found.notes == () and [f.cell for f in found.findings if f.verdict is Verdict.FAIL] == ["c4"]


class TestZeros:
    def test_to_zero_is_minus_100_percent_and_a_fail(self):
        found = compare_values([100] * 4, [0] * 4)
        assert found.change_pct == -100.0 and found.verdict is Verdict.FAIL
        assert compare_values([100], [0], tier=tier(low=1, high=1)).verdict is Verdict.INCONCLUSIVE
        assert compare_values([100] * 3, [0] * 3, tier=tier(low=4)).verdict is Verdict.INCONCLUSIVE

    def test_zero_latency_is_no_improvement(self):
        assert compare_values([5] * 4, [0] * 4, metric="tpot_pooled_ms").verdict is Verdict.INCONCLUSIVE

    def test_a_zero_baseline_has_no_change(self):
        found = compare_values([0] * 4, [100] * 4)
        assert (
            found.change_pct is None
            and found.verdict is Verdict.INCONCLUSIVE
            and "baseline is zero" in found.reason
        )

    def test_nothing_on_both_sides_is_no_pass(self):
        found = compare_values([0] * 4, [0] * 4)
        assert found.change_pct == 0.0 and found.verdict is Verdict.INCONCLUSIVE

    def test_some_zeros_decide_nothing(self):
        found = compare_values([100] * 4, [0, 100, 100, 100])
        assert found.verdict is Verdict.INCONCLUSIVE and "zero in 1 of 4" in found.reason

    def test_negative_values_have_no_ratio(self):
        assert "negative" in compare_values([100] * 4, [-1, 100, 100, 100]).reason

    def test_changes_are_relative_to_the_baseline(self):
        assert change_percent(100, 230) == pytest.approx(130.0)
        assert (
            change_percent(0, 0) == 0.0 and change_percent(0, 5) is None and change_percent(None, 5) is None
        )


class TestAbsentMetrics:
    def cells(self, base, cand):
        metrics = ("out_tps", "tpot_pooled_ms")
        found = compare_cells([cell("b", base)], [cell("c", cand)], tier=tier(gated=metrics))
        return {one.rule.name: one for one in found.findings if one.rule}

    def test_gone_in_the_candidate_is_missing(self):
        both = [{"out_tps": v, "tpot_pooled_ms": 5.0} for v in BASE[:4]]
        found = self.cells(both, scaled(1.0))["tpot_pooled_ms"]
        assert found.verdict is Verdict.MISSING and found.exit_code is ExitCode.INCOMPLETE

    def test_gone_with_a_reason_says_so(self):
        both = [{"out_tps": v, "tpot_pooled_ms": 5.0} for v in BASE[:4]]
        gone = [
            launch("c", pair, value, absent={"tpot_pooled_ms": "one token"})
            for pair, value in enumerate(BASE[:4])
        ]
        assert "one token" in self.cells(both, gone)["tpot_pooled_ms"].reason

    def test_only_in_the_candidate_is_new_and_not_gated(self):
        both = [{"out_tps": v, "tpot_pooled_ms": 5.0} for v in scaled(1.0)]
        found = self.cells(BASE[:4], both)["tpot_pooled_ms"]
        assert found.verdict is Verdict.NEW and found.exit_code is ExitCode.OK

    def test_nan_is_invalid_in_either_arm(self):
        bad = [
            launch(a, pair, {}, absent={"out_tps": NOT_A_NUMBER})
            for a, pair in zip("bbbb", range(4), strict=True)
        ]
        found = compare_cells([cell("b", bad)], [cell("c", BASE[:4])], tier=tier()).findings[0]
        assert found.verdict is Verdict.INVALID and found.exit_code is ExitCode.INVALID

    def test_no_gated_metric_at_all_is_missing(self):
        found = compare_cells(
            [cell("b", [{"e2e_p50_ms": 1.0}] * 4)], [cell("c", [{"e2e_p50_ms": 1.0}] * 4)], tier=tier()
        )
        assert found.findings[0].verdict is Verdict.MISSING and "nothing to judge" in found.findings[0].reason

    def test_in_disjoint_pairs(self):
        b = [{"out_tps": 1.0, "ttft_p50_ms": 9.0} if pair < 2 else 1.0 for pair in range(4)]
        c = [{"out_tps": 1.0, "ttft_p50_ms": 9.0} if pair >= 2 else 1.0 for pair in range(4)]
        found = {f.rule.name: f for f in compare_cells([cell("b", b)], [cell("c", c)], tier=tier()).findings}
        assert "no pair" in found["ttft_p50_ms"].reason


class TestStates:
    def test_one_excluded_pair_below_the_minimum_is_invalid(self):
        cand = [*(launch("c", pair, v) for pair, v in enumerate(BASE[:3])), broken("c", 3, "PATH_MISMATCH")]
        found = compare_cells([cell("b", BASE[:4])], [cell("c", cand)], tier=tier())
        assert [one.verdict for one in found.findings] == [Verdict.INVALID]
        assert found.findings[0].exit_code is ExitCode.INVALID and "PATH_MISMATCH" in found.findings[0].reason

    def test_a_pair_that_was_run_again_replaces_an_excluded_one(self):
        cand = [
            broken("c", 0, "PATH_MISMATCH"),
            *(launch("c", p, v) for p, v in enumerate(BASE[1:5], start=1)),
        ]
        found = compare_cells([cell("b", BASE[:5])], [cell("c", cand)], tier=tier())
        assert found.findings[0].verdict is Verdict.PASS and found.findings[0].estimate.n == 4
        assert len(found.exclusions) == 1 and "PATH_MISMATCH" in found.exclusions[0]

    def test_three_excluded_pairs_are_no_accident(self):
        cand = [
            *(broken("c", pair, "INVALID") for pair in range(3)),
            *(launch("c", pair, 100.0) for pair in range(3, 7)),
        ]
        found = compare_cells([cell("b", [100.0] * 7)], [cell("c", cand)], tier=tier()).findings
        assert [one.verdict for one in found] == [Verdict.INVALID]

    @pytest.mark.parametrize(
        ("state", "verdict", "code"),
        [
            ("FAILED", "MISSING", ExitCode.INFRASTRUCTURE),
            ("TIMEOUT", "MISSING", ExitCode.INFRASTRUCTURE),
            ("OOM", "MISSING", ExitCode.INFRASTRUCTURE),
            ("UNSUPPORTED", "MISSING", ExitCode.INCOMPLETE),
            ("SKIPPED", "MISSING", ExitCode.INCOMPLETE),
            ("PATH_MISMATCH", "INVALID", ExitCode.INVALID),
            ("INVALID", "INVALID", ExitCode.INVALID),
        ],
    )
    @pytest.mark.parametrize("arm", ["baseline", "candidate"])
    def test_a_state_without_numbers(self, state, verdict, code, arm):
        bad = [broken("c", pair, state) for pair in range(4)]
        sides = (
            [cell("b", bad), cell("c", BASE[:4])]
            if arm == "baseline"
            else [cell("b", BASE[:4]), cell("c", bad)]
        )
        found = compare_cells(sides[:1], sides[1:], tier=tier()).findings
        assert [(one.verdict, one.exit_code) for one in found] == [(verdict, code)]
        assert state in found[0].reason and "it broke" in found[0].reason

    def test_fallback_is_compared_and_flagged(self):
        cand = [launch("c", pair, v, flags=("FALLBACK: torch",)) for pair, v in enumerate(scaled(1.0))]
        found = compare_cells([cell("b", BASE[:4])], [cell("c", cand)], tier=tier()).findings[0]
        assert found.verdict is Verdict.PASS and found.notes[0] == "candidate: FALLBACK: torch"

    def test_a_launch_without_its_partner_is_left_out(self):
        found = compare_cells([cell("b", BASE[:5])], [cell("c", scaled(1.0))], tier=tier())
        assert found.findings[0].estimate.n == 4 and "no launch of the other arm" in found.exclusions[0]


class TestCells:
    def test_only_in_one_arm(self):
        found = compare_cells(
            [cell("b", BASE[:4], cell_id="old")], [cell("c", BASE[:4], cell_id="new")], tier=tier()
        ).findings
        assert [(one.cell, one.verdict) for one in found] == [("new", "NEW"), ("old", "MISSING")]
        assert found[1].exit_code is ExitCode.INCOMPLETE

    def test_new_without_numbers_is_no_news(self):
        bad = cell("c", [broken("c", 0, "OOM")], cell_id="new")
        found = compare_cells([], [bad], tier=tier()).findings[0]
        assert found.verdict is Verdict.MISSING and found.exit_code is ExitCode.INFRASTRUCTURE

    def test_planned_but_never_recorded_is_missing(self):
        found = compare_cells([], [], tier=tier(), required={"x": "cell x"}).findings
        assert [(one.cell, one.verdict) for one in found] == [("cell x", "MISSING")]

    def test_renamed_is_joined_by_identity(self):
        found = compare_cells(
            [cell("b", BASE[:4], name="old name")], [cell("c", scaled(1.0), name="new name")]
        )
        assert {one.cell for one in found.findings} == {"old name"}  # the baseline's name stays
        assert {one.verdict for one in found.findings} == {Verdict.PASS}

    def test_the_same_name_for_another_cell_is_told(self):
        old = cell("b", BASE[:4], cell_id="1", name="cell", requested={"isl": 32, "path": "a"})
        new = cell("c", BASE[:4], cell_id="2", name="cell", requested={"isl": 64, "path": "b"})
        notes = compare_cells([old], [new]).notes
        assert len(notes) == 1 and notes[0].endswith("isl: 32 → 64")

    def test_other_versions_and_dtypes_are_not_comparable(self):
        old = cell("b", BASE[:4], identity={"metric_def_version": "1", "effective kv_dtype": "bf16"})
        new = cell("c", BASE[:4], identity={"metric_def_version": "2", "effective kv_dtype": "fp8"})
        found = compare_cells([old], [new]).findings
        assert [one.verdict for one in found] == [Verdict.NOT_COMPARABLE]
        assert "metric_def_version 1 against 2" in found[0].reason and "kv_dtype" in found[0].reason
        under_test = compare_cells([old], [new], dtypes_under_test=["kv_dtype"]).findings[0]
        assert "kv_dtype" not in under_test.reason and found[0].exit_code is ExitCode.INCONCLUSIVE

    def test_a_refusal_is_one_verdict(self):
        found = compare_cells([cell("b", BASE[:4])], [cell("c", BASE[:4])], refusal="other machine: cpu")
        assert [(one.verdict, one.reason) for one in found.findings] == [
            ("NOT_COMPARABLE", "other machine: cpu")
        ]

    @settings(max_examples=20, deadline=None)
    @given(st.randoms(use_true_random=False))
    def test_order_changes_nothing(self, random):
        names = ["c1", "c2", "c16", "c256"]
        values = {name: [noisy(100, 0.01, 4, seed) for seed in (n, n + 50)] for n, name in enumerate(names)}

        def arms(shuffle):
            sides = []
            for arm in (0, 1):
                order = list(names)
                shuffle(order)
                sides.append([cell("bc"[arm], values[name][arm], cell_id=name) for name in order])
            return compare_cells(*sides)

        assert arms(lambda order: None).findings == arms(random.shuffle).findings

    def test_cells_are_ordered_as_people_count(self):
        names = ["c256", "c16", "c2"]
        found = compare_cells(
            *([cell(arm, BASE[:4], cell_id=name) for name in names] for arm in "bc"), tier=tier()
        )
        assert [one.cell for one in found.findings] == ["c2", "c16", "c256"]


def test_undecided_cells_are_those_that_more_pairs_could_decide():
    undecided = compare_cells([cell("b", BASE[:4])], [cell("c", [100, 96, 101, 97])], tier=tier())
    assert undecided.undecided() == ["c16"]
    assert compare_cells([cell("b", BASE[:4])], [cell("c", scaled(1.0))], tier=tier()).undecided() == []
    used_up = compare_cells([cell("b", BASE)], [cell("c", [100, 96, 101, 97, 100, 96])], tier=tier())
    assert used_up.findings[0].verdict is Verdict.INCONCLUSIVE and used_up.undecided() == []


def test_without_a_tier_nothing_is_gated():
    found = compare_cells([cell("b", BASE[:4])], [cell("c", scaled(0.5))], tier=None).findings
    assert found and all(one.exit_code is ExitCode.OK for one in found)
