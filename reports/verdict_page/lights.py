"""Can the verdict be trusted? A few lights, each with a word, a symbol and a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.records import CellState, Record, flagged
from reports.compare.comparability import other_machine
from reports.compare.decide import UNDERPOWERED
from reports.compare.words import Verdict
from reports.tables import number, plain
from reports.verdict_page.inputs import Compared
from reports.verdict_page.words import counted

Colour = Literal["good", "warn", "bad"]
SYMBOLS: dict[Colour, str] = {"good": "✓", "warn": "⚠", "bad": "✗"}
MOST_NAMED = 5


@dataclass(frozen=True, kw_only=True)
class Light:
    """One reason to trust the verdict, or not to."""

    colour: Colour
    title: str
    text: str

    @property
    def symbol(self) -> str:
        return SYMBOLS[self.colour]


def lights(data: Compared) -> list[Light]:
    """In the order in which a reviewer asks."""
    return [
        _floor(data),
        _machine(data),
        _interleaved(data),
        _power(data),
        _path(data),
        _complete(data),
        _checks(data),
    ]


def _light(title: str, colour: Colour, text: str) -> Light:
    return Light(colour=colour, title=title, text=text)


def _floor(data: Compared) -> Light:
    comparison = data.judgement.comparison
    if comparison.floor_problem or not comparison.floor_date:
        return _light("Noise floor", "bad", comparison.floor_problem or "no A/A run was read")
    wide = sum(
        one.gated and one.floor is not None and one.margin is not None and one.floor >= one.margin > 0
        for one in comparison.findings
    )
    said = f"A/A run of {comparison.floor_date}"
    if wide:
        return _light("Noise floor", "warn", f"{said}; in {counted(wide, 'verdict')} it sets the margin")
    return _light("Noise floor", "good", said)


def _machine(data: Compared) -> Light:
    title = "Same machine"
    runs = [arm.run for arm in data.arms]
    if runs[0] is None or runs[1] is None:
        problem = next(arm.problem for arm in data.arms if arm.run is None)
        return _light(title, "bad", f"a run cannot be read: {problem}")
    if not all(run.environment.get("cpu") or run.environment.get("gpu") for run in (runs[0], runs[1])):
        return _light(title, "warn", "nothing says on which machine an arm ran")
    wrong = other_machine(runs[0].environment, runs[1].environment)
    if wrong:
        return _light(title, "bad", wrong)
    differing = data.judgement.verdict.unexpected_diffs
    if differing:
        return _light(title, "warn", f"same hardware, but {'; '.join(differing[:MOST_NAMED])}")
    if runs[0].run_id == runs[1].run_id:
        return _light(title, "good", "both arms ran in one run")
    return _light(title, "good", "no difference between the two environments is known")


def _interleaved(data: Compared) -> Light:
    title = "Interleaved"
    comparison = data.judgement.comparison
    if not comparison.interleaved:
        return _light(title, "bad", "the arms were not run in pairs of launches: nothing can pass")
    found = [one.estimate for one in comparison.findings if one.gated and one.estimate]
    one_order = sum(not one.both_orders for one in found)
    if one_order:
        return _light(
            title, "warn", f"in {counted(one_order, 'verdict')} one arm ran first in every pair of launches"
        )
    pairs = sorted({one.n for one in found})
    if not pairs:
        return _light(title, "warn", "planned as pairs of launches, none of which could be used")
    span = f"{pairs[0]}" if len(pairs) == 1 else f"{pairs[0]} to {pairs[-1]}"
    return _light(title, "good", f"{span} usable pairs of launches per cell, in both orders")


def _power(data: Compared) -> Light:
    title = "Power"
    gated = [one for one in data.judgement.comparison.findings if one.gated and one.rule is not None]
    judged = [(one.estimate, one.margin) for one in gated if one.estimate and one.margin is not None]
    if not judged:
        return _light(title, "bad", "no gated metric has enough launches to tell what could be seen")
    weak = [ratio for found, margin in judged if (ratio := _over(found.detectable, margin)) > UNDERPOWERED]
    if weak:
        return _light(
            title,
            "bad",
            f"{len(weak)} of {counted(len(judged), 'verdict')} could only see losses above {UNDERPOWERED:g} ×"
            f" the margin (the worst {number(max(weak))} ×)",
        )
    return _light(title, "good", f"every one of {counted(len(judged), 'verdict')} could see its margin")


def _over(detectable: float, margin: float) -> float:
    return detectable / margin if margin > 0 else 1e9


def _path(data: Compared) -> Light:
    title = "Path proven"
    records = [record for arm in data.arms for record in arm.records]
    wrong = [one for one in records if one.state is CellState.PATH_MISMATCH]
    if wrong:
        return _light(title, "bad", f"{_named(wrong)} did not run the path of its label: {wrong[0].reason}")
    fallbacks = [one for one in records if one.state is CellState.FALLBACK]
    if fallbacks:
        return _light(title, "warn", f"{_named(fallbacks)} ran with a fallback: {fallbacks[0].reason}")
    proven = [one for one in records if one.state.has_numbers and one.effective]
    if not proven:
        return _light(title, "warn", "no record says what the engines ran")
    silent = sum(one.state.has_numbers for one in records) - len(proven)
    if silent:
        return _light(title, "warn", f"{counted(silent, 'record')} with numbers do not say what ran")
    return _light(title, "good", f"the engines of {counted(len(proven), 'record')} say that they ran it")


def _named(records: Sequence[Record]) -> str:
    paths = sorted({plain(one.requested.get("path")) for one in records})
    return f"{', '.join(paths[:MOST_NAMED])} ({counted(len(records), 'record')})"


def _complete(data: Compared) -> Light:
    title = "Complete"
    comparison = data.judgement.comparison
    gone = [one for one in comparison.findings if one.gated and one.verdict is Verdict.MISSING]
    if gone:
        return _light(title, "bad", f"{counted(len(gone), 'verdict')} missing, the first: {gone[0].cell}")
    if not comparison.findings:
        return _light(title, "bad", "no cell was compared")
    if comparison.exclusions:
        left_out = counted(len(comparison.exclusions), "line")
        return _light(title, "warn", f"launches were left out: {left_out} under “Provenance”")
    return _light(title, "good", "every planned cell has numbers, no launch was left out")


def _checks(data: Compared) -> Light:
    title = "Checks passed"
    records = [record for arm in data.arms for record in arm.records]
    failed: dict[str, int] = {}
    for record in records:
        for name in flagged(record):
            failed[name] = failed.get(name, 0) + 1
    if failed:
        words = ", ".join(f"{name} {times} ×" for name, times in sorted(failed.items()))
        return _light(title, "warn", f"failed checks of {counted(len(records), 'record')}: {words}")
    if not any(record.checks for record in records):
        return _light(title, "warn", "no check of the measurement is recorded")
    return _light(title, "good", f"no check failed in {counted(len(records), 'record')}")
