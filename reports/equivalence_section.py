"""The section of the page on equivalence: how far each arm's answers are from the reference's, as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.equivalence.score import Equivalence, Forced, Greedy, Level
from harness.records import Record
from reports.load import RunData
from reports.tables import DASH, number


@dataclass(frozen=True)
class Row:
    """One arm at one concurrency."""

    arm: str
    against: str
    concurrency: str
    identical: str
    divergence: str
    agreement: str
    clear: str
    distance: str
    largest: str
    kl: str
    reading: str
    itself: bool


@dataclass(frozen=True)
class Section:
    """All that the template needs."""

    reference: list[str]
    prompts: int
    alternatives: int | None
    near_tie: str
    rows: list[Row]
    problems: list[str]


def equivalence_section(data: RunData) -> Section | None:
    """None for a run that compared no answers."""
    found = [one.equivalence for one in data.records if one.equivalence is not None]
    if not found:
        return None
    levels = [level for one in found for level in one.levels]
    own = {(one.reference, level.concurrency): level for one in found if _itself(one) for level in one.levels}
    return Section(
        reference=list(dict.fromkeys(one.reference for one in found)),
        prompts=max((level.greedy.prompts for level in levels), default=0),
        alternatives=next((level.forced.alternatives for level in levels if level.forced), None),
        near_tie=", ".join(sorted({number(level.greedy.near_tie) for level in levels})),
        rows=[
            _row(one, level, own.get((one.reference, level.concurrency)))
            for one in found
            for level in one.levels
        ],
        problems=_missing(data.records) + [f"{one.arm}: {one.reason}" for one in found if one.reason],
    )


def _missing(records: Sequence[Record]) -> list[str]:
    """Launches of which no record carries a comparison although others do, with how they ended."""
    compared = {record.launch_id.split(".")[0] for record in records if record.equivalence is not None}
    without: dict[str, Record] = {}
    for record in records:
        if (record.round or 1) == 1 and record.launch_id.split(".")[0] not in compared:
            without[record.launch_id.split(".")[0]] = record
    return [
        f"{record.label}: not compared, its launch ended with {record.state.value}"
        + (f" ({record.reason})" if record.reason else "")
        for record in without.values()
    ]


def _itself(one: Equivalence) -> bool:
    return one.against == "itself"


def _row(one: Equivalence, level: Level, own: Level | None) -> Row:
    greedy, forced = level.greedy, level.forced
    absent = f"{DASH} {level.reason}" if forced is None else ""
    return Row(
        arm=one.arm,
        against="itself, asked again"
        if _itself(one)
        else f"the reference; differs in {', '.join(one.differs_in)}",
        concurrency=f"c{level.concurrency}",
        identical=_identical(greedy),
        divergence=_divergence(greedy),
        agreement=percentage(forced.top1_agree) if forced else absent,
        clear=_clear(forced),
        distance=number(forced.mean_abs_dlogprob) if forced else DASH,
        largest=number(forced.max_abs_dlogprob) if forced else DASH,
        kl=f"{number(forced.mean_kl)} (max {number(forced.max_kl)})" if forced else DASH,
        reading=_reading(one, forced, own.forced if own else None),
        itself=_itself(one),
    )


def percentage(share: float) -> str:
    """A share that is never rounded up to 100 %.

    >>> percentage(1.0), percentage(0.99996), percentage(0.5)
    ('100 %', '99.996 %', '50.0 %')
    """
    if share == 1:
        return "100 %"
    texts = (f"{100 * share:.{digits}f}" for digits in range(1, 12))
    return f"{next(text for text in texts if float(text) < 100)} %"


def _identical(greedy: Greedy) -> str:
    empty = f", {greedy.empty} empty" if greedy.empty else ""
    return f"{greedy.identical} of {greedy.prompts}{empty}"


def _divergence(greedy: Greedy) -> str:
    left = greedy.prompts - greedy.identical
    if not left or greedy.first_div_median is None:
        return "none"
    ties = "leads unknown" if greedy.near_ties is None else f"{greedy.near_ties} at a near-tie"
    lead = "" if greedy.margin_max is None else f", largest lead {number(greedy.margin_max)}"
    return f"token {number(greedy.first_div_median)} (median of {left}); {ties}{lead}"


def _clear(forced: Forced | None) -> str:
    if forced is None or forced.clear_agree is None:
        return DASH
    return f"{percentage(forced.clear_agree)} of {forced.clear_positions:,}"


def _reading(one: Equivalence, forced: Forced | None, own: Forced | None) -> str:
    """The distance beside that of the reference to itself: what noise of the same arm cannot explain."""
    if forced is None:
        return DASH
    if _itself(one):
        return "repeats exactly" if forced.max_abs_dlogprob == 0 else "noise of one and the same arm"
    if own is None:
        return "the reference against itself is not known"
    if forced.max_abs_dlogprob == 0:
        return "the same log-probs, bit by bit"
    if own.mean_abs_dlogprob == 0:
        return "the reference repeats exactly: all of this is the arm's"
    return f"{number(forced.mean_abs_dlogprob / own.mean_abs_dlogprob)} × the reference against itself"
