"""How the page tells equivalence: in text, with the reference's own level beside it."""

from __future__ import annotations

import pytest

from harness.equivalence.score import Equivalence, Forced, Greedy, Level
from reports.equivalence_section import percentage
from reports.html import render
from reports.load import load_run
from tests.reports.conftest import make_failed, make_record


def level(concurrency=1, *, identical=16, distance=0.0, agree=1.0, near_ties=0, margin=None, forced=True):
    left = 16 - identical
    return Level(
        concurrency=concurrency,
        greedy=Greedy(
            prompts=16, identical=identical, first_div=[None] * identical + [3] * left,
            first_div_median=3.0 if left else None, near_ties=near_ties, near_tie=0.1,
            margin_max=margin, empty=0,
        ),
        forced=Forced(
            positions=256, top1_agree=agree, clear_positions=200, clear_agree=agree,
            mean_abs_dlogprob=distance, max_abs_dlogprob=5 * distance, mean_kl=distance / 10,
            max_kl=distance, alternatives=20,
        ) if forced else None,
        reason=None if forced else "the engine refused a request: too long",
    )  # fmt: skip


def compared(arm, *levels, against="reference", reason=None, differs=("kv_dtype",)):
    return Equivalence(
        arm=arm, reference="A kv=auto", against=against, levels=list(levels), reason=reason,
        differs_in=[] if against == "itself" else list(differs),
    )  # fmt: skip


@pytest.fixture
def section(run_folder, parse):
    def show(*records):
        text = render(load_run(run_folder(list(records))))
        assert text.count("<script") == 1  # that of the tables, no name of ours
        return parse(text).by_id("equivalence").text

    return show


def itself(*levels):
    return make_record(0, equivalence=compared("A kv=auto", *levels, against="itself"))


def test_an_arm_stands_beside_the_reference_against_itself(section):
    other = compared("A kv=fp8", level(identical=14, distance=0.03, agree=0.99, near_ties=1, margin=0.7))
    text = section(itself(level(distance=0.001)), make_record(1, equivalence=other))
    assert "Reference: A kv=auto" in text and "itself, asked again" in text
    assert "the reference; differs in kv_dtype" in text
    assert "14 of 16" in text and "token 3.00 (median of 2); 1 at a near-tie, largest lead 0.700" in text
    assert "99.0 %" in text and "99.0 % of 200" in text
    assert "30.0 × the reference against itself" in text
    assert "noise of one and the same arm" in text


def test_leads_that_are_unknown_are_not_told_as_no_near_tie(section):
    other = compared("B", level(identical=14, near_ties=None, forced=False))
    text = section(itself(level(forced=False)), make_record(1, equivalence=other))
    assert "token 3.00 (median of 2); leads unknown" in text and "at a near-tie" not in text


def test_a_reference_without_noise_excuses_nothing(section):
    text = section(itself(level()), make_record(1, equivalence=compared("B", level(distance=2.0, agree=0.4))))
    assert "repeats exactly" in text and "all of this is the arm's" in text
    same = section(itself(level()), make_record(1, equivalence=compared("B", level())))
    assert "bit by bit" in same


def test_scores_that_are_absent_and_arms_without_answers_have_reasons(section):
    text = section(
        itself(level()),
        make_record(1, equivalence=compared("B", level(forced=False))),
        make_record(2, equivalence=compared("C", reason="the engine died: exit code 9")),
        make_failed(3, reason="it crashed", label="D c1"),
    )
    assert "the engine refused a request" in text
    assert "C: the engine died: exit code 9" in text
    assert "D c1: not compared, its launch ended with FAILED (it crashed)" in text


def test_a_run_that_compared_nothing_has_no_section(run_folder, parse):
    page = parse(render(load_run(run_folder([make_record(0)]))))
    assert not [one for one in page.walk() if one.attributes.get("id") == "equivalence"]


@pytest.mark.parametrize(
    ("share", "text"),
    [(1.0, "100 %"), (0.99996, "99.996 %"), (0.5, "50.0 %"), (0.0, "0.0 %"), (0.999, "99.9 %")],
)
def test_a_share_below_one_is_never_rounded_up_to_it(share, text):
    assert percentage(share) == text
