"""All findings → one exit code and one word. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.errors import Cause, ExitCode, most_severe
from reports.compare.finding import Comparison, Finding
from reports.compare.words import RUN_VERDICT_OF_EXIT, RunVerdict, Verdict

DECIDED = (Verdict.PASS, Verdict.IMPROVED)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the gate says. `examined`: verdicts that stand on numbers of both arms, or on a test."""

    exit_code: ExitCode
    verdict: RunVerdict
    examined: int
    reason: str


def judge(comparison: Comparison, *, others: Sequence[Finding] = (), causes: Iterable[Cause] = ()) -> Outcome:
    """The outcome of a comparison with its `others` (accuracy, equivalence) and what its runs themselves say.

    A gate that passed nothing never ends with 0: without any finding it is incomplete, with nothing but NEW
    cells inconclusive. Without a tier nothing is gated, and only the runs' own codes count.
    """
    findings = [*comparison.findings, *others]
    gated = [one for one in findings if one.gated]
    own = list(causes)
    codes = [*(cause.code for cause in own), *(one.exit_code for one in gated)]
    examined = [
        one for one in gated if one.verdict not in (Verdict.NEW, Verdict.MISSING, Verdict.NOT_COMPARABLE)
    ]
    worst = most_severe(codes)
    if worst is not ExitCode.OK:
        return Outcome(
            exit_code=worst,
            verdict=RUN_VERDICT_OF_EXIT[worst],
            examined=len(examined),
            reason=_why(gated, own, worst),
        )
    if comparison.tier is None and not gated:
        return Outcome(
            exit_code=ExitCode.OK, verdict=RunVerdict.NOT_GATED, examined=0, reason="nothing is gated"
        )
    if not findings:
        return _empty(ExitCode.INCOMPLETE, "there is nothing to compare: no cell in either arm")
    if not any(one.verdict in DECIDED for one in gated):
        return _empty(ExitCode.INCONCLUSIVE, "nothing was judged: no gated cell is in both arms")
    if all(one.gate == "measurement" for one in examined):
        return Outcome(
            exit_code=ExitCode.OK,
            verdict=RunVerdict.NOT_GATED,
            examined=len(examined),
            reason=f"{len(examined)} cells ran as asked; speed is not judged",
        )
    return Outcome(
        exit_code=ExitCode.OK,
        verdict=RunVerdict.PASS,
        examined=len(examined),
        reason=f"all {len(examined)} verdicts are PASS or IMPROVED",
    )


def _empty(code: ExitCode, reason: str) -> Outcome:
    return Outcome(exit_code=code, verdict=RUN_VERDICT_OF_EXIT[code], examined=0, reason=reason)


def _why(gated: Sequence[Finding], own: Sequence[Cause], worst: ExitCode) -> str:
    """How many findings asked for the exit code, and the first of them; else what the run itself says."""
    causes = [one for one in gated if one.exit_code is worst]
    if not causes:
        said = list(dict.fromkeys(cause.why for cause in own if cause.code is worst))
        return said[0] if len(said) == 1 else f"{len(said)} causes, the first: {said[0]}"
    first = causes[0]
    what = first.cell if first.rule is None else f"{first.cell}, {first.rule.name}"
    why = f": {first.reason}" if first.reason else ""
    return f"{len(causes)} of {len(gated)} verdicts, the first: {what} {first.verdict}{why}"
