"""Puts scores into the outcome of the cell that carries them. Pure."""

from __future__ import annotations

import dataclasses

from harness.accuracy.scoring import Scored
from harness.accuracy.words import score_faults
from harness.recording import Outcome
from harness.records import Check

CHECK = "accuracy"


def not_scored(outcome: Outcome) -> Outcome:
    """A cell without numbers is not asked anything."""
    check = Check(ok=None, detail=f"answers were not scored: the cell is {outcome.state}")
    return _checked(outcome, check)


def with_scores(outcome: Outcome, scored: Scored) -> Outcome:
    """The scores, and whether they are sound; the speed of the cell stays what it is."""
    faults = ([scored.failure] if scored.failure is not None else []) + score_faults(scored.scores)
    failed = sum(score.errors for score in scored.scores)
    answered = sum(score.answered for score in scored.scores) - failed
    sound = f"{answered} questions were asked and answered" + (f", {failed} more failed" if failed else "")
    detail = "; ".join(dict.fromkeys(faults)) or sound
    found = _checked(outcome, Check(ok=not faults, detail=detail))
    return dataclasses.replace(found, accuracy=scored.scores)


def _checked(outcome: Outcome, check: Check) -> Outcome:
    return dataclasses.replace(outcome, checks=(outcome.checks or {}) | {CHECK: check})
