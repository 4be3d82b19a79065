"""The exit-code table, row by row, and which row wins."""

from __future__ import annotations

import itertools

import pytest

from harness.errors import PRECEDENCE, Cause, ExitCode
from reports.compare.finding import Comparison, Finding
from reports.compare.words import RunVerdict, Verdict
from reports.gate.outcome import judge
from tests.reports.compare.arms import tier

TIER = tier()


def finding(verdict: str, gate="performance", *, gated=True, infrastructure=False) -> Finding:
    return Finding(
        gate=gate,
        cell_id="1",
        cell="c1",
        verdict=Verdict(verdict),
        gated=gated,
        infrastructure=infrastructure,
    )


def outcome(*findings: Finding, tier=TIER, **more):
    return judge(Comparison(findings=findings, tier=tier, interleaved=True), **more)


# finding → exit code and word of a run that has one PASS and this
ROWS = [
    (finding("PASS"), 0, "PASS"),
    (finding("IMPROVED"), 0, "PASS"),
    (finding("NEW"), 0, "PASS"),
    (finding("FAIL"), 1, "FAIL"),
    (finding("INCONCLUSIVE"), 3, "INCONCLUSIVE"),
    (finding("NOT_COMPARABLE"), 3, "INCONCLUSIVE"),
    (finding("FAIL", "acceptance"), 4, "FAIL"),
    (finding("FAIL", "accuracy"), 4, "FAIL"),
    (finding("FAIL", "equivalence"), 4, "FAIL"),
    (finding("MISSING", "measurement", infrastructure=True), 5, "ERROR"),
    (finding("INVALID", "measurement"), 6, "INVALID"),
    (finding("MISSING", "measurement"), 7, "INCOMPLETE"),
]


@pytest.mark.parametrize(("found", "code", "word"), ROWS)
def test_each_row(found, code, word):
    said = outcome(finding("PASS"), found)
    assert (said.exit_code, said.verdict) == (code, word) and said.reason
    ungated = Finding(**{**found.__dict__, "gated": False})
    assert outcome(finding("PASS"), ungated).exit_code is ExitCode.OK


@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(ROWS, 2)))
def test_precedence(one, other):
    order = [2, 6, 4, 1, 5, 7, 3, 0]
    expected = min((one[1], other[1]), key=order.index)
    for pair in ((one[0], other[0]), (other[0], one[0])):
        assert outcome(finding("PASS"), *pair).exit_code == expected
    assert [int(code) for code in PRECEDENCE] == [130, *order]


@pytest.mark.parametrize("code", list(ExitCode))
def test_what_a_run_ended_with_counts(code):
    cause = Cause(code=code, why="L003, c1: the check that failed")
    said = outcome(finding("PASS"), causes=[cause])
    assert said.exit_code is code
    assert code is ExitCode.OK or said.reason == cause.why
    assert outcome(
        finding("INVALID"), causes=[Cause(code=code, why="L003, c1: the check that failed")]
    ).exit_code in (code, ExitCode.INVALID)


def test_a_gate_that_examined_nothing_is_never_0():
    assert outcome().exit_code is ExitCode.INCOMPLETE
    assert outcome(finding("NEW"), finding("NEW")).exit_code is ExitCode.INCONCLUSIVE
    assert outcome(finding("PASS", gated=False)).exit_code is ExitCode.INCONCLUSIVE
    assert outcome(finding("NEW"), tier=tier(gated=[])).exit_code is ExitCode.INCONCLUSIVE


def test_without_a_tier_nothing_is_gated():
    said = outcome(finding("FAIL", gated=False), tier=None)
    assert (said.exit_code, said.verdict) == (0, RunVerdict.NOT_GATED)
    crash = Cause(code=ExitCode.INFRASTRUCTURE, why="an engine died")
    assert outcome(tier=None, causes=[crash]).exit_code is ExitCode.INFRASTRUCTURE


def test_smoke_says_that_speed_was_not_judged():
    said = outcome(finding("PASS", "measurement"), tier=tier(gated=[]))
    assert (said.exit_code, said.verdict, said.examined) == (0, RunVerdict.NOT_GATED, 1)
    assert "speed is not judged" in said.reason


def test_accuracy_alone_can_pass_and_fail():
    assert outcome(others=[finding("PASS", "accuracy")]).exit_code is ExitCode.OK
    assert outcome(others=[finding("FAIL", "accuracy")]).exit_code is ExitCode.CORRECTNESS


def test_the_reason_counts_and_names_the_first():
    said = outcome(finding("PASS"), finding("FAIL"), finding("FAIL"))
    assert said.reason == "2 of 3 verdicts, the first: c1 FAIL" and said.examined == 3


def test_the_causes_of_a_run_are_counted_and_the_first_is_named():
    died = [Cause(code=ExitCode.INFRASTRUCTURE, why=f"L00{i}, c1: check {i}") for i in (2, 5, 2)]
    said = outcome(finding("PASS"), causes=[Cause(code=ExitCode.INCOMPLETE, why="skipped"), *died])
    assert said.reason == "2 causes, the first: L002, c1: check 2"
    assert outcome(finding("MISSING", infrastructure=True), causes=died).reason.startswith("1 of 1 verdicts")
