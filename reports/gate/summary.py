"""summary.md: the verdict as a comment of a pull request, under a size that every host takes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from reports.compare.words import Verdict
from reports.gate.banner import banner, short
from reports.gate.verdict import GateEntry, VerdictFile

MOST_BYTES = 60_000
SYMBOL = {
    Verdict.PASS: "✓",
    Verdict.IMPROVED: "▲",
    Verdict.FAIL: "✗",
    Verdict.INCONCLUSIVE: "?",
    Verdict.INVALID: "∅",
    Verdict.MISSING: "∅",
    Verdict.NEW: "+",
    Verdict.NOT_COMPARABLE: "≠",
}
SEVERITY = (
    Verdict.FAIL,
    Verdict.INVALID,
    Verdict.MISSING,
    Verdict.NOT_COMPARABLE,
    Verdict.INCONCLUSIVE,
    Verdict.IMPROVED,
    Verdict.PASS,
    Verdict.NEW,
)
HEADER = (
    "| | cell | metric | baseline | candidate | change | loss [interval] | margin | pairs | why |\n"
    "|---|---|---|---:|---:|---:|---:|---:|---:|---|\n"
)
MOST_LINES = 20  # of notes, of exclusions


def render_summary(verdict: VerdictFile, entries: Sequence[GateEntry] | None = None) -> str:
    """Markdown of at most 60,000 bytes. `entries`: what the table shows, else what is gated.

    Rows are in the order of cells while all fit, else the worst first and the rest counted.
    """
    shown = list(verdict.gates if entries is None else entries)
    head = _head(verdict)
    tail = _tail(verdict)
    room = MOST_BYTES - len((head + HEADER + tail).encode()) - 200
    rows = [_row(entry) for entry in shown]
    if sum(len(row.encode()) for row in rows) > room:
        order = sorted(range(len(shown)), key=lambda i: (SEVERITY.index(shown[i].verdict), i))
        rows = _fitting([rows[i] for i in order], room)
    table = HEADER + "".join(rows) if rows else "Nothing was compared.\n"
    left = len(shown) - len(rows)
    more = f"\n{left} more rows, none worse than these, are in verdict.json.\n" if left else ""
    return head + table + more + tail


def _fitting(rows: Sequence[str], room: int) -> list[str]:
    taken: list[str] = []
    for row in rows:
        room -= len(row.encode())
        if room < 0:
            break
        taken.append(row)
    return taken


def _head(verdict: VerdictFile) -> str:
    counts = ", ".join(f"{number} {word}" for word, number in verdict.counts.items() if number) or "none"
    tier = verdict.tier
    gate = (
        f"tier {escape(tier.name)}, {tier.pairs_min} to {tier.pairs_max} pairs of launches"
        if tier
        else "no gate"
    )
    kind = "interleaved" if verdict.interleaved else "not interleaved"
    floor = verdict.floor.problem or f"A/A run of {verdict.floor.measured_on}"
    return (
        f"## {verdict.verdict} (exit {verdict.exit_code})\n\n"
        f"{escape(banner(verdict), longest=600)}\n\n"
        f"- baseline {_arm(verdict.baseline.name, verdict.baseline.revisions)};"
        f" candidate {_arm(verdict.candidate.name, verdict.candidate.revisions)}\n"
        f"- {gate}; {kind}; noise floor: {escape(floor)}\n"
        f"- gated verdicts: {counts}\n\n"
    )


def _arm(name: str, revisions: Sequence[str]) -> str:
    said = ", ".join(revision[:20] for revision in revisions[:3])
    return f"{escape(name)}{f' ({escape(said)})' if said else ''}"


def _tail(verdict: VerdictFile) -> str:
    parts = [
        _listed("Not used", verdict.exclusions),
        _listed("Differs beside the arms", verdict.unexpected_diffs),
        _listed("Notes", verdict.notes),
    ]
    return "".join(parts)


def _listed(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    shown = "".join(f"- {escape(line, longest=200)}\n" for line in lines[:MOST_LINES])
    more = f"- and {len(lines) - MOST_LINES} more\n" if len(lines) > MOST_LINES else ""
    return f"\n**{title}**\n\n{shown}{more}"


def _row(entry: GateEntry) -> str:
    better = {"up": " ↑", "down": " ↓", None: ""}[entry.better]
    cells = (
        f"{SYMBOL[entry.verdict]} {entry.verdict}",
        escape(entry.cell),
        escape(f"{entry.metric}{better}" if entry.metric else entry.gate),
        _number(entry.baseline, entry.unit),
        _number(entry.candidate, entry.unit),
        "" if entry.change_pct is None else f"{entry.change_pct:+.2f} %",
        _interval(entry),
        "" if entry.margin_pct is None else f"{entry.margin_pct:.2f} {entry.loss_unit}",
        str(entry.n_pairs) if entry.n_pairs else "",
        escape(entry.reason or "", longest=120),
    )
    return f"| {' | '.join(cells)} |\n"


def _number(value: float | None, unit: str | None) -> str:
    return "" if value is None else f"{value:.5g} {unit}"


def _interval(entry: GateEntry) -> str:
    if entry.loss_pct is None or entry.ci_pct is None:
        return ""
    low, high = entry.ci_pct
    return f"{entry.loss_pct:+.2f} [{low:+.2f}, {high:+.2f}]"


def escape(text: str, *, longest: int = 80) -> str:
    """Any text inside a table cell: no markup, no HTML, no mention; one line of `longest` at most."""
    text = short(text) if longest == 80 else " ".join(text.split())
    if len(text) > longest:
        text = f"{text[: longest - 1]}…"
    text = "".join(c if c.isprintable() else "\ufffd" for c in text)
    # an underscore between letters is none of Markdown's
    marks = r"[&<>|\\`*~\[\]#@$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])"
    return re.sub(marks, lambda found: f"&#{ord(found[0])};", text)
