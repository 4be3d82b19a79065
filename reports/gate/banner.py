"""The verdict in one plain sentence. Pure."""

from __future__ import annotations

from reports.compare.words import RunVerdict, Verdict
from reports.gate.verdict import GateEntry, VerdictFile

LONGEST_NAME = 80


def banner(verdict: VerdictFile) -> str:
    """What a reviewer reads first. Names are as they are: whoever prints them must escape."""
    baseline, candidate = short(verdict.baseline.name), short(verdict.candidate.name)
    judged = f"{verdict.examined} gated verdict{'s' if verdict.examined != 1 else ''}"
    match verdict.verdict:
        case RunVerdict.PASS:
            improved = verdict.counts[Verdict.IMPROVED]
            return f"{candidate} is as good as {baseline} in all {judged} ({improved} improved)."
        case RunVerdict.FAIL:
            failed = [one for one in verdict.gates if one.verdict is Verdict.FAIL]
            return f"{candidate} is worse than {baseline} in {len(failed)} of {judged}; {_worst(failed)}."
        case RunVerdict.INCONCLUSIVE:
            return f"There is no evidence yet for or against {candidate}: {verdict.reason}."
        case RunVerdict.INVALID:
            return f"The measurement is not valid: {verdict.reason}."
        case RunVerdict.INCOMPLETE:
            return f"The comparison is incomplete: {verdict.reason}."
        case RunVerdict.ERROR:
            return f"An engine or the harness failed: {verdict.reason}."
        case RunVerdict.NOT_GATED:
            return f"Numbers without a gate: {verdict.reason}."


def worst_of(entries: list[GateEntry]) -> GateEntry | None:
    """The entry with the largest loss; the first one where none has a number."""
    return max(entries, key=lambda one: -1e300 if one.loss_pct is None else one.loss_pct, default=None)


def _worst(failed: list[GateEntry]) -> str:
    worst = worst_of(failed)
    if worst is None:
        return "see the cells"
    where = f"{short(worst.cell)}, {worst.metric or worst.gate}"
    if worst.loss_pct is None or worst.ci_pct is None:
        return f"{where}: {worst.reason}"
    low, high = worst.ci_pct
    return f"the worst: {where}: loss {worst.loss_pct:.1f} {worst.loss_unit} [{low:.1f}, {high:.1f}]"


def short(name: str) -> str:
    """A name on one line, cut in the middle, so that both ends stay."""
    name = " ".join(name.split())
    half = LONGEST_NAME // 2
    return name if len(name) <= LONGEST_NAME else f"{name[: half - 1]}…{name[-half:]}"
