"""Pairs of launches: ABBA, the ladder up and down, new prompts in every pair, repeats in the same order."""

import dataclasses

import pytest

from harness.arms import pair_cells, read_arms
from harness.composition import Composer
from harness.overrides import expand_sweeps
from harness.pairs import missing_pairs, next_pairs, plan_pairs
from paths.api import UserError

WORDS = ("+path=scripted", "concurrency=16,1,4")


def arms(*words, most=4, **request):
    composer = Composer()
    asked = read_arms({"cmd": "run", "baseline": "dsa_mrv2_eager"} | request)
    pairs = pair_cells(
        asked,
        expand_sweeps(words, composer.groups),
        composer=composer,
        baseline_composer=composer,
        revision="r2",
        baseline_revision="r1",
    )
    return pairs, plan_pairs(pairs, most=most)[0]


def test_order_is_abba_and_the_ladder_turns_round():
    _, plan = arms(*WORDS)
    launches = [launch for pair in range(1, 5) for launch in plan.launches(pair)]
    assert [launch.arm for launch in launches] == [
        "baseline", "candidate", "candidate", "baseline", "baseline", "candidate", "candidate", "baseline",
    ]  # fmt: skip
    loads = [[cell.config.concurrency for cell in launch.cells] for launch in launches]
    assert loads == [[1, 4, 16]] * 2 + [[16, 4, 1]] * 2 + [[1, 4, 16]] * 2 + [[16, 4, 1]] * 2
    assert [launch.round for launch in launches] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert [launch.slot for launch in launches] == [0, 1] * 4
    assert [launch.order for launch in launches] == list(range(8))


def test_both_arms_of_a_pair_share_the_cells_and_nothing_else():
    pairs, plan = arms(*WORDS)
    for pair in pairs:
        assert pair.baseline.cell_id == pair.candidate.cell_id
        assert pair.baseline.arm_id != pair.candidate.arm_id
        assert (pair.baseline.engine.path, pair.candidate.engine.path) == ("dsa_mrv2_eager", "scripted")
    assert len({launch.launch_id for n in range(1, plan.last + 1) for launch in plan.launches(n)}) == 16


def test_engines_are_lanes_of_their_own():
    _, plan = arms("+path=scripted", "concurrency=1,4", "kv_dtype=bf16,fp8")
    assert [len(lane) for lane in plan.lanes] == [2, 2]
    launches = plan.launches(2)
    assert [launch.arm for launch in launches] == ["candidate", "baseline"] * 2
    assert [plan.pair_of(launch.pair) for launch in launches] == [2] * 4
    assert len({launch.pair for launch in launches}) == 2


def test_the_same_path_in_both_arms_is_two_arms():
    """An A/A run, or one path at two revisions: records of the arms must not mix."""
    pairs, _ = arms("concurrency=1", cmd="aa", baseline="scripted")
    (pair,) = pairs
    assert pair.baseline.engine.identity() == pair.candidate.engine.identity()
    assert pair.baseline.arm_id != pair.candidate.arm_id and pair.baseline.folder != pair.candidate.folder


def test_debug_and_options_of_the_path_stay_with_the_candidate():
    words = ("+path=scripted", "debug.step_delay_pct=30", "path.options.gap_ms=5", "threads=1")
    pairs, _ = arms(*words, baseline="scripted")
    baseline, candidate = pairs[0].baseline.engine, pairs[0].candidate.engine
    assert (baseline.debug["step_delay_pct"], candidate.debug["step_delay_pct"]) == (0, 30)
    assert (baseline.options["gap_ms"], candidate.options["gap_ms"]) == (10, 5)
    assert baseline.threads == candidate.threads == 1


def test_without_a_path_of_its_own_the_baseline_is_the_candidates_path_with_its_options():
    words = ("+path=scripted", "debug.checks=true", "path.options.gap_ms=5")
    pairs, _ = arms(*words, baseline=None, baseline_rev="HEAD")
    baseline = pairs[0].baseline.engine
    assert baseline.options["gap_ms"] == 5 and not baseline.debug["checks"]


def test_baseline_set_changes_the_baseline_alone():
    own = {"kv_dtype": "fp8", "path.options": {"gap_ms": 3}, "path.options.tokens_per_event": [1, 2]}
    pairs, _ = arms("+path=scripted", "kv_dtype=bf16", baseline="scripted", baseline_set=own)
    baseline, candidate = pairs[0].baseline, pairs[0].candidate
    assert (baseline.engine.kv_dtype, candidate.engine.kv_dtype) == ("fp8", "bf16")
    assert baseline.engine.options["gap_ms"] == 3
    assert baseline.engine.options["tokens_per_event"] == [1, 2]
    assert baseline.cell_id == candidate.cell_id


@pytest.mark.parametrize(
    "own", [{"path": "x"}, {"debug.checks": True}, {"debug": {"checks": True}}, {"tier": "pr"}]
)
def test_baseline_set_refuses_what_is_not_the_baselines(own):
    with pytest.raises(UserError, match="baseline_set"):
        arms("+path=scripted", baseline_set=own)


@pytest.mark.parametrize("own", [{"concurrency": 4}, {"isl": 64}, {"gsm8k": {"test_file": "x"}}, {"seed": 1}])
def test_both_arms_get_the_same_work(own):
    with pytest.raises(UserError, match="both arms get the same work"):
        arms("+path=scripted", baseline_set=own)


def test_one_cell_for_two_candidates_is_refused():
    with pytest.raises(UserError, match="a comparison has one"):
        arms("+path=scripted,dsa_mrv2", "concurrency=1")


def test_a_mistyped_key_of_the_baseline_is_named():
    with pytest.raises(UserError, match="kv_dtyp"):
        arms("+path=scripted", baseline_set={"kv_dtyp": "fp8"})


@pytest.mark.parametrize(
    ("usable", "wanted", "odd", "even"),
    [((), 4, 2, 2), ((1, 2, 3, 4), 6, 1, 1), ((1, 3, 4), 4, 0, 1), ((2,), 1, 1, 0), ((1, 2, 3), 3, 0, 0)],
)
def test_missing_pairs_keep_the_balance(usable, wanted, odd, even):
    assert missing_pairs(usable, wanted=wanted) == {1: odd, 0: even}


def test_a_lost_pair_is_measured_again_in_its_own_order():
    _, plan = arms(*WORDS)
    lost_even = next_pairs(plan, {"a": {1: 0, 0: 1}}, after={"a": 4})
    assert lost_even == {6: {"a"}}  # 5 runs the baseline first
    both = next_pairs(plan, {"a": {1: 1, 0: 1}, "b": {1: 0, 0: 2}}, after={"a": 4, "b": 4})
    assert both == {5: {"a"}, 6: {"a", "b"}, 8: {"b"}}
    assert next_pairs(plan, {"a": {1: 3, 0: 0}}, after={"a": plan.last - 1}) == {}


def test_further_pairs_have_only_the_cells_that_need_them():
    _, plan = arms(*WORDS)
    wanted = plan.cell_ids[1]
    for launch in plan.launches(5, {wanted}):
        assert [cell.cell_id for cell in launch.cells] == [wanted]
    other = dataclasses.replace(plan, lanes=(*plan.lanes, ()))
    assert all(launch.cells for launch in other.launches(5))


def test_accuracy_is_scored_in_the_first_pair_alone():
    _, plan = arms(*WORDS, most=4)
    assert [{launch.scores for launch in plan.launches(pair)} for pair in (1, 2, 3, 4)] == [
        {True},
        {False},
        {False},
        {False},
    ]
