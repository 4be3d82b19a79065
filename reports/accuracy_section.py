"""The section of the page on accuracy: one row for each cell, task and concurrency, as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.accuracy.score import AccuracyScore, DraftFigure, Proportion
from harness.accuracy.words import score_faults, score_notes, share_words, task_words
from harness.cell import mtp_words
from harness.records import Record
from reports.load import RunData
from reports.tables import DASH, number, plain


@dataclass(frozen=True)
class Value:
    """A figure and what stands below it: an interval, or why there is none."""

    text: str
    note: str = ""


@dataclass(frozen=True)
class Row:
    """One task asked once."""

    arm: str
    task: str
    numeric: Value
    strict: Value
    flexible: Value
    n: str
    truncated: str
    unparsable: str
    tokens: str
    sparse: Value
    length: Value
    first_draft: Value
    seconds: str


@dataclass(frozen=True)
class Section:
    """All that the template needs."""

    rows: list[Row]
    notes: list[str]
    faults: list[str]
    drafts: bool
    versions: list[str]


def accuracy_section(data: RunData) -> Section | None:
    """None for a run that scored nothing and was not asked to."""
    asked = [record for record in data.records if record.requested.get("accuracy") is not None]
    scored = [(record, score) for record in asked for score in record.accuracy]
    if not asked:
        return None
    notes = [
        f"{_arm(record)}: {note}"
        for record in asked
        for note in score_notes(record.accuracy, selects=_selects(record))
    ]
    faults = [f"{_arm(record)}: {fault}" for record in asked for fault in score_faults(record.accuracy)]
    return Section(
        rows=[_row(record, score) for record, score in scored],
        notes=list(dict.fromkeys(notes)),
        faults=_missing(asked) + faults,
        drafts=any(score.drafts is not None for _, score in scored),
        versions=sorted({score.task_version for _, score in scored if score.task_version}),
    )


def _missing(asked: Sequence[Record]) -> list[str]:
    """Launches of which no record has a score, with how they ended."""
    scored = {record.order for record in asked if record.accuracy}
    left = {record.order: record for record in asked if record.order not in scored}
    return [
        f"{_arm(record)}: not scored: its launch ended with {record.state.value}"
        + (f" ({record.reason})" if record.reason else "")
        for record in left.values()
    ]


def _selects(record: Record) -> bool:
    return (record.effective or {}).get("index_dtype") not in (None, "none")


def _arm(record: Record) -> str:
    requested = record.requested
    mtp = int(requested.get("mtp") or 0)
    words = [plain(requested.get("path")), plain(requested.get("model"))]
    words += [f"mtp={mtp_words(mtp, requested.get('mtp_forced_al'))}"] if mtp else []
    words += [f"round {record.round}"] if record.round is not None else []
    return " ".join(words)


def _row(record: Record, score: AccuracyScore) -> Row:
    drafts, tokens = score.drafts, score.gen_tokens_mean
    return Row(
        arm=_arm(record),
        task=task_words(score) + ("" if score.complete else f", stopped after {score.answered}"),
        numeric=_proportion(score.acc_numeric, score.reason),
        strict=_proportion(score.acc_strict, None),
        flexible=_proportion(score.acc_flexible, None),
        n=str(score.acc_numeric.n if score.acc_numeric else 0)
        + (f" (+{score.errors} failed)" if score.errors else ""),
        truncated=str(score.truncated),
        unparsable=str(score.unparsable),
        tokens=DASH if tokens is None else number(tokens),
        sparse=Value(share_words(score.dsa_active_token_frac) if _selects(record) else DASH),
        length=_estimate(drafts.al if drafts else None),
        first_draft=_estimate(drafts.c_0 if drafts else None),
        seconds=DASH if score.seconds is None else number(score.seconds),
    )


def _proportion(proportion: Proportion | None, reason: str | None) -> Value:
    if proportion is None or proportion.value is None:
        return Value(DASH, reason or "")
    return Value(f"{proportion.value:.3f}", f"{proportion.low:.3f} … {proportion.high:.3f}")


def _estimate(estimate: DraftFigure | None) -> Value:
    if estimate is None:
        return Value(DASH)
    low_high = f"{estimate.ci95[0]:.3f} … {estimate.ci95[1]:.3f}, " if estimate.ci95 else ""
    return Value(f"{estimate.value:.3f}", f"{low_high}n {estimate.n:,}")
