"""Answers against the reference's: what must be the same, and what may round."""

from __future__ import annotations

import pytest

from harness.equivalence.score import NOT_NUMBERS, Equivalence, Forced, Greedy, Level
from reports.compare.equivalence import compare_equivalence, loss_bounds
from reports.compare.finding import Finding
from reports.compare.words import Verdict

CONTEXT = Finding(gate="equivalence", cell_id="1", cell="c16", verdict=Verdict.PASS, gated=True)


def level(identical=64, *, prompts=64, clear=1.0, kl=1e-4, empty=0, reason=None, positions=1000) -> Level:
    greedy = Greedy(
        prompts=prompts, identical=identical, first_div=[None] * identical + [3] * (prompts - identical),
        first_div_median=None, near_ties=0, near_tie=0.1, margin_max=None, empty=empty,
    )  # fmt: skip
    forced = Forced(
        positions=positions, top1_agree=clear, clear_positions=positions, clear_agree=clear,
        mean_abs_dlogprob=0.0, max_abs_dlogprob=0.0, mean_kl=kl, max_kl=kl, alternatives=8,
    )  # fmt: skip
    return Level(concurrency=16, greedy=greedy, forced=None if reason else forced, reason=reason)


def equivalence(one: Level | None, differs=("path",), against="reference") -> Equivalence:
    return Equivalence(
        arm="b", reference="a", against=against, differs_in=list(differs), levels=[one] if one else [],
        reason=None if one else "the engine died",
    )  # fmt: skip


def verdicts(one, own=None, differs=("path",)):
    itself = equivalence(own or level(), (), "itself")
    found = compare_equivalence(CONTEXT, equivalence(one, differs), itself)
    return {f.rule.name if f.rule else "cell": f for f in found}


def test_the_same_answers_pass():
    found = verdicts(level(), differs=("mtp",))
    assert {name: one.verdict for name, one in found.items()} == {
        "identical_answers": "PASS", "clear_agreement": "PASS", "mean_kl": "PASS"
    }  # fmt: skip


def test_fewer_identical_answers_fail_where_rounding_is_the_same():
    found = verdicts(level(32), differs=("mtp",))["identical_answers"]
    assert found.verdict is Verdict.FAIL and found.gated and found.exit_code == 4


@pytest.mark.parametrize("key", ["path", "kv_dtype", "path.options"])
def test_they_are_only_shown_where_it_is_not(key):
    found = verdicts(level(32), differs=(key,))["identical_answers"]
    assert found.verdict is Verdict.FAIL and not found.gated and "not gated" in found.notes[0]


def test_the_baseline_is_judged_against_itself():
    found = verdicts(level(32), own=level(33), differs=("mtp",))["identical_answers"]
    assert found.verdict is Verdict.INCONCLUSIVE  # the same share, of too few prompts to say more
    alone = compare_equivalence(CONTEXT, equivalence(level(), ("mtp",)), None)
    assert alone[0].verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(("clear", "verdict"), [(0.995, "PASS"), (0.9, "FAIL"), (0.985, "INCONCLUSIVE")])
def test_the_best_token_agrees_where_it_leads(clear, verdict):
    assert verdicts(level(clear=clear))["clear_agreement"].verdict == verdict


def test_kl_is_judged_by_the_baselines_own_and_by_rounding():
    assert verdicts(level(kl=0.5))["mean_kl"].verdict is Verdict.FAIL
    assert verdicts(level(kl=0.5), own=level(kl=0.2))["mean_kl"].verdict is Verdict.PASS
    assert verdicts(level(kl=0.009), own=level(kl=0.0))["mean_kl"].verdict is Verdict.PASS


@pytest.mark.parametrize("broken", [level(empty=1), level(reason=NOT_NUMBERS)])
def test_empty_answers_and_nan_fail(broken):
    assert verdicts(broken)["identical_answers"].verdict is Verdict.FAIL


def test_absent_answers_are_missing():
    assert verdicts(None)["cell"].verdict is Verdict.MISSING
    assert verdicts(level(reason="no log-probs"))["clear_agreement"].verdict is Verdict.MISSING


def test_bounds_of_a_difference_of_shares():
    # Newcombe 1998, table II (a), method 10: 56/70 - 48/80, two-sided 95 %
    assert loss_bounds(56, 70, 48, 80, alpha=0.025) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    assert loss_bounds(20, 40, 20, 40)[0] < 0 < loss_bounds(20, 40, 20, 40)[1]
