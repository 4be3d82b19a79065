"""What is measured next: undecided cells go on, lost pairs are measured again, decided cells rest."""

from types import SimpleNamespace

import pytest

from harness.looks import NextPairs, next_look, with_scorings
from harness.pairs import PairPlan
from reports.compare.finding import Finding
from reports.compare.words import Verdict
from tests.reports.compare.arms import broken, cell, compare_cells, launch, tier

NOISY = (0.9, 1.12, 0.95, 1.08, 0.9, 1.12)  # around nothing, far too wide for a decision


def plan_of(*cells, most=8):
    return PairPlan(lanes=(tuple(SimpleNamespace(cell_id=one) for one in cells),), most=most)


def look(candidates, *, baseline=None, low=4, high=8, plan=None, **more):
    """`candidates`: cell → values or launches by pair, against a baseline of 100."""
    asked = tier(low=low, high=high)
    sides = {"b": [], "c": []}
    records = []
    for cell_id, values in candidates.items():
        base = (baseline or {}).get(cell_id) or [100.0] * len(values)
        sides["b"].append(cell("b", base, cell_id=cell_id))
        sides["c"].append(cell("c", values, cell_id=cell_id))
        records += [SimpleNamespace(cell_id=cell_id, pair=pair) for pair in range(len(values))]
    found = compare_cells(sides["b"], sides["c"], tier=asked, **more)
    return next_look(plan or plan_of(*candidates, most=high), asked, found, records)


def noisy(n):
    return [100.0 * NOISY[i % len(NOISY)] for i in range(n)]


def same(n):
    return [100.0 + 0.1 * (-1) ** i for i in range(n)]


def test_undecided_cells_go_on_and_decided_ones_rest():
    found = look({"c1": noisy(4), "c16": same(4)})
    assert found.pairs == {5: {"c1"}, 6: {"c1"}}
    assert found.undecided == ["c1"] and found.repeated == []


def test_it_ends_when_all_is_decided_or_the_maximum_is_reached():
    assert look({"c1": same(4)}).pairs == {}
    assert look({"c1": noisy(8)}).pairs == {}


def test_a_clear_loss_needs_no_further_pairs():
    assert look({"c1": [80.0, 80.2, 79.9, 80.1]}).pairs == {}


def test_a_pair_lost_for_a_cause_is_measured_again_in_its_order_before_anything_is_decided():
    values = same(4)
    values[1] = broken("c", 1, "INVALID")  # pair 2, the candidate first
    found = look({"c1": values})
    assert found.pairs == {6: {"c1"}} and found.repeated == ["c1"]


def test_a_decided_cell_between_looks_is_filled_up():
    values = same(6)
    values[4] = broken("c", 4, "INVALID")
    assert look({"c1": values}).pairs == {7: {"c1"}}


def test_no_more_than_two_repeats():
    values = same(6)
    for lost in (0, 1, 2):
        values[lost] = broken("c", lost, "INVALID")
    assert look({"c1": values}).pairs == {}


@pytest.mark.parametrize("state", ["UNSUPPORTED", "PATH_MISMATCH"])
def test_what_will_happen_again_is_not_repeated(state):
    values = same(4)
    values[0] = broken("c", 0, state)
    assert look({"c1": values}).pairs == {}


def test_a_crash_is_measured_again():
    values = same(4)
    values[0] = broken("c", 0, "FAILED")
    assert look({"c1": values}).pairs == {5: {"c1"}}


def test_without_a_noise_floor_a_harmless_cell_has_nothing_to_gain():
    from reports.compare.floor import NO_FLOOR

    found = look({"c1": same(4), "c16": noisy(4)}, floor=NO_FLOOR)
    assert found.pairs == {5: {"c16"}, 6: {"c16"}}


def test_a_launch_that_is_missing_counts_as_lost():
    base = {"c1": [launch("b", pair, 100.0) for pair in range(3)]}
    assert look({"c1": same(4)}, baseline=base).pairs == {6: {"c1"}}


def records_until(pairs, *cells):
    return [SimpleNamespace(cell_id=one, pair=pair) for one in cells for pair in range(pairs)]


def accuracy(verdict, *, cell_id="c1", gate="accuracy", gated=True):
    return Finding(gate=gate, cell_id=cell_id, cell=f"{cell_id}: gsm", verdict=Verdict(verdict), gated=gated)


@pytest.mark.parametrize("verdict", ["INCONCLUSIVE", "MISSING", "NEW"])
def test_accuracy_that_is_open_is_scored_once_more(verdict):
    plan = plan_of("c1", "c16")
    begun = records_until(4, "c1", "c16")
    alone = with_scorings(NextPairs(), plan, [accuracy(verdict)] * 3, begun)
    assert alone.pairs == alone.scored == {5: {"c1"}} and alone.unanswered == ["c1: gsm"]
    beside = with_scorings(NextPairs(pairs={5: {"c16"}, 6: {"c1"}}), plan, [accuracy(verdict)], begun)
    assert beside.pairs == {5: {"c16"}, 6: {"c1"}} and beside.scored == {6: {"c1"}}


@pytest.mark.parametrize(
    "found",
    [accuracy("PASS"), accuracy("FAIL"), accuracy("INCONCLUSIVE", gated=False),
     accuracy("INCONCLUSIVE", gate="equivalence")],
)  # fmt: skip
def test_what_is_decided_or_no_accuracy_is_not_scored_again(found):
    assert with_scorings(NextPairs(), plan_of("c1"), [found], records_until(4, "c1")) == NextPairs()


def test_scoring_again_ends_with_the_pairs_of_the_tier():
    found = with_scorings(
        NextPairs(), plan_of("c1", most=6), [accuracy("INCONCLUSIVE")], records_until(6, "c1")
    )
    assert found.pairs == found.scored == {}
