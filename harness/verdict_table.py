"""The verdict on the terminal: one sentence, the gated rows that matter most, where the files are."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.markup import escape
from rich.table import Table

from harness.console import out
from reports.gate.banner import banner, short
from reports.gate.run_gate import SUMMARY, VERDICT, Judgement
from reports.gate.summary import SEVERITY, SYMBOL
from reports.gate.verdict import GateEntry

MOST_ROWS = 30


def print_imported(cells: int, report: Path) -> None:
    """Numbers of one arm were imported, with nothing to compare them with."""
    out.print(f"{cells} cells imported, nothing to compare them with: {report}", markup=False, soft_wrap=True)


def print_verdict(judgement: Judgement, folder: Path, *, report: Path | None = None) -> None:
    """The worst rows, the sentence, and the files that a person opens."""
    verdict = judgement.verdict
    entries = sorted(enumerate(verdict.gates), key=lambda one: (SEVERITY.index(one[1].verdict), one[0]))
    shown = [entry for _, entry in sorted(entries[:MOST_ROWS])]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for heading in ("", "cell", "metric"):
        table.add_column(heading, overflow="fold")
    for heading in ("change", "loss [interval]", "margin", "n"):
        table.add_column(heading, justify="right", no_wrap=True)
    for entry in shown:
        table.add_row(*(escape(text) for text in _row(entry)))
    if shown:
        out.print(table)
    if len(verdict.gates) > len(shown):
        out.print(f"and {len(verdict.gates) - len(shown)} more in {VERDICT}")
    out.print(
        f"{verdict.verdict} (exit {verdict.exit_code}): {banner(verdict)}", markup=False, soft_wrap=True
    )
    out.print(f"{report or folder / SUMMARY}", markup=False, soft_wrap=True)


def _row(entry: GateEntry) -> tuple[str, ...]:
    interval = ""
    if entry.loss_pct is not None and entry.ci_pct is not None:
        interval = f"{entry.loss_pct:+.2f} [{entry.ci_pct[0]:+.2f}, {entry.ci_pct[1]:+.2f}]"
    return (
        f"{SYMBOL[entry.verdict]} {entry.verdict}",
        short(entry.cell),
        entry.metric or entry.gate,
        "" if entry.change_pct is None else f"{entry.change_pct:+.2f} %",
        interval,
        "" if entry.margin_pct is None else f"{entry.margin_pct:.2f} {entry.loss_unit}",
        str(entry.n_pairs) if entry.n_pairs else "",
    )
