"""The scores of a run as a table on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from harness.accuracy.score import AccuracyScore, DraftFigure
from harness.accuracy.words import estimate_words, proportion_words, share_words, task_words
from harness.console import out
from harness.records import Record


def print_scores(
    records: Sequence[Record], *, settings: Callable[[Record], Sequence[str]] = lambda _: ()
) -> None:
    """One row for each cell, task and concurrency; nothing when nothing was scored.

    settings: in words, what tells the record from others with the same path.
    """
    scored = [(record, score) for record in records for score in record.accuracy]
    if not scored:
        return
    drafts = any(score.drafts is not None for _, score in scored)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), title_justify="left")
    table.title = "accuracy (numeric counts; 95 % intervals)"
    for heading in ("path", "task"):
        table.add_column(heading, overflow="fold")
    for heading in ("numeric ↑", "strict ↑", "flexible ↑", "n", "cut", "no number", "sparse"):
        table.add_column(heading, justify="right")
    if drafts:
        table.add_column("first draft ↑", justify="right")
    for record, score in scored:
        table.add_row(
            *_row(record, score, settings(record)), *([estimate_words(_first_draft(score))] if drafts else [])
        )
    out.print(table)


def _row(record: Record, score: AccuracyScore, settings: Sequence[str]) -> list[str]:
    mtp = int(record.requested.get("mtp") or 0)
    path = " ".join([str(record.requested["path"]), *([f"mtp={mtp}"] if mtp else []), *settings])
    ended = "" if score.complete else f" (stopped after {score.answered} of {score.questions})"
    strict, flexible = (
        f"{each.value:.3f}" if each is not None and each.value is not None else "–"
        for each in (score.acc_strict, score.acc_flexible)
    )
    return [
        escape(path),
        escape(task_words(score) + ended),
        proportion_words(score.acc_numeric),
        strict,
        flexible,
        str(score.acc_numeric.n) if score.acc_numeric else "0",
        str(score.truncated),
        str(score.unparsable),
        share_words(score.dsa_active_token_frac),
    ]


def _first_draft(score: AccuracyScore) -> DraftFigure | None:
    return score.drafts.c_0 if score.drafts is not None else None
