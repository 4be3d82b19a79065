"""Records as rows of text: 3 significant digits, units in headers, n beside each figure, reasons for gaps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from harness.headlines import latency_metrics, notes
from harness.records import CellState, Metric, Record, flagged
from reports.load import flatten

DASH = "—"
ARROWS = {"up": "↑", "down": "↓", "none": ""}
BETTER_WORDS = {"up": "higher is better", "down": "lower is better", "none": "neither is better"}
STATE_SYMBOLS = {
    CellState.OK: "✓",
    CellState.FALLBACK: "◐",
    CellState.UNSUPPORTED: "∅",
    CellState.SKIPPED: "⤼",
    CellState.FAILED: "✗",
    CellState.TIMEOUT: "⏱",
    CellState.OOM: "▣",
    CellState.PATH_MISMATCH: "≠",
    CellState.INVALID: "!",
}
# the figures that stand in the first table; every other metric is in the cell's own section
LATENCIES = {
    "ttft_p50_ms": "TTFT p50",
    "e2e_p50_ms": "E2E p50",
    "ttft_sched_p50_ms": "TTFT from schedule p50",
    "e2e_sched_p50_ms": "E2E from schedule p50",
}
DRAFTS = "al"  # of runs with drafts alone
HEADLINES = {
    "out_tps": "Output throughput",
    "tpot_pooled_ms": "TPOT",
    **LATENCIES,
    DRAFTS: "Acceptance length",
    "success_rate": "Success",
    "dsa_active_token_frac": "Sparse decode tokens",
}
EXIT_WORDS = {
    0: "every cell was measured, nothing gated failed",
    1: "performance regression",
    2: "usage or configuration",
    3: "inconclusive or not comparable",
    4: "correctness",
    5: "infrastructure: start-up, crash, time-out, out of memory or all requests refused",
    6: "path mismatch or invalid measurement",
    7: "a required cell is missing or unsupported",
    130: "interrupted",
}


def number(value: float) -> str:
    """3 significant digits, thousands separated. A share below 1 is never rounded up to 1.

    >>> number(12345.6), number(0.99962), number(0.0), number(17.25)
    ('12,300', '0.9996', '0', '17.2')
    """
    if value == 0:
        return "0"
    digits = 3
    while digits < 9 and abs(value) < 1 and abs(float(f"{value:.{digits}g}")) >= 1:
        digits += 1
    rounded = float(f"{value:.{digits}g}")
    magnitude = math.floor(math.log10(abs(rounded)))
    if magnitude < -5 or magnitude >= 12:
        return f"{value:.{digits - 1}e}"
    text = f"{rounded:,.{max(0, digits - 1 - magnitude)}f}"
    return text.rstrip("0").rstrip(".") if digits > 3 else text


def signed(value: float) -> str:
    """A logarithm with its sign and three places."""
    return f"{value:+.3f}".replace("-", "−")


def bytes_text(value: float) -> str:
    """Bytes with a binary unit, 3 significant digits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{number(value)} {unit}"
        value /= 1024
    return f"{number(value)} TiB"


def scalar(value: Any) -> str:
    """Any recorded value as text; None is a word, floats keep 3 significant digits."""
    if value is None:
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {scalar(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list | tuple):
        return ", ".join(scalar(item) for item in value) or "none"
    return str(value)


def plain(value: Any) -> str:
    """A requested setting as the user types it: no thousands separators, null for None."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple | Mapping):
        return scalar(value)
    return str(value)


def duration(started_at: str, finished_at: str | None) -> str | None:
    """Wall-clock length of a run in words, from its two labels; None when it cannot be told."""
    if finished_at is None:
        return None
    try:
        seconds = (datetime.fromisoformat(finished_at) - datetime.fromisoformat(started_at)).total_seconds()
    except (ValueError, TypeError):  # not ISO 8601, or one label has a zone and the other has not
        return None
    if seconds < 0:  # the wall clock was set back during the run
        return None
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@dataclass(frozen=True)
class Figure:
    """One number of a table: its text (an em dash when missing) and what must be read with it."""

    text: str
    note: str
    sort: str = ""  # the number in full, for sorting; empty when missing

    @property
    def missing(self) -> bool:
        return self.text == DASH


def figure(metric: Metric | None, *, unit_in_header: str | None = None) -> Figure:
    """A metric as text with n and exclusions, or with the reason for its absence."""
    if metric is None:
        return Figure(DASH, "not recorded")
    excluded = f", {metric.excluded:,} excluded" if metric.excluded else ""
    if metric.value is None:
        return Figure(DASH, f"{metric.reason} (n = {metric.n:,}{excluded})")
    unit = "" if metric.unit in ("", unit_in_header) else f" {metric.unit}"
    return Figure(
        number(metric.value) + unit, f"{interval(metric)}n = {metric.n:,}{excluded}", repr(metric.value)
    )


def interval(metric: Metric) -> str:
    """ "0.78 … 0.86, " of a metric that has an interval of 95 %."""
    return "" if metric.ci95 is None else f"{number(metric.ci95[0])} … {number(metric.ci95[1])}, "


@dataclass(frozen=True)
class Column:
    """A metric's column: header with unit and better-direction arrow."""

    name: str
    title: str
    unit: str
    arrow: str
    better: str


def columns(records: Sequence[Record]) -> list[Column]:
    """The headline columns, with unit and direction as the records state them.

    Latencies count from the send in a closed loop and from the schedule in an open one.
    """
    found, latencies = [], latency_metrics(records, ["ttft", "e2e"])
    for name, title in HEADLINES.items():
        if name in LATENCIES and name not in latencies:
            continue
        if name == DRAFTS and not any(record.requested.get("mtp") for record in records):
            continue
        metric = next((record.metrics[name] for record in records if name in record.metrics), None)
        unit, better = (metric.unit, metric.better) if metric else ("", "none")
        found.append(Column(name, title, unit, ARROWS[better], BETTER_WORDS[better]))
    return found


@dataclass(frozen=True)
class Problem:
    """Cells that ended alike: same path, state and reason."""

    state: str
    path: str
    reason: str
    rows: list[Row]
    logs: list[str]


def problems(rows: Sequence[Row]) -> list[Problem]:
    """Every cell that is not OK; cells with one cause share an entry.

    What ran something else than its label says comes first, the rest in order of first appearance.
    """
    found: dict[tuple[str, str, str], Problem] = {}
    for row in rows:
        if row.state == CellState.OK:
            continue
        key = (row.state, row.path, row.reason)
        problem = found.setdefault(key, Problem(*key, rows=[], logs=[]))
        problem.rows.append(row)
        if row.log and row.log not in problem.logs:
            problem.logs.append(row.log)
    return sorted(found.values(), key=lambda problem: problem.state != CellState.PATH_MISMATCH)


def short(text: str, limit: int = 120) -> str:
    """A sentence that fits beside a number; the whole one stands in the list of problems."""
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


@dataclass(frozen=True)
class Row:
    """One cell on one path: what the results table shows."""

    anchor: str
    label: str
    path: str
    state: str
    symbol: str
    reason: str
    figures: list[Figure]  # empty for a state without numbers
    failed_checks: list[tuple[str, str]]
    notes: list[str]
    statuses: str
    log: str | None


def result_rows(records: Sequence[Record], headers: Sequence[Column]) -> list[Row]:
    """One row per record, in execution order."""
    return [
        Row(
            anchor=anchor(index),
            label=cell_label(record),
            path=plain(record.requested.get("path")),
            state=record.state.value,
            symbol=STATE_SYMBOLS[record.state],
            reason=record.reason or "",
            figures=[figure(record.metrics.get(c.name), unit_in_header=c.unit) for c in headers]
            if record.state.has_numbers
            else [],
            failed_checks=[(name, record.checks[name].detail) for name in flagged(record)],
            notes=notes(record),
            statuses=status_text(record.statuses),
            log=record.log,
        )
        for index, record in enumerate(records)
    ]


def cell_label(record: Record) -> str:
    """The label without the path, which has a column of its own; in an experiment with the round."""
    label = record.label.removeprefix(f"{plain(record.requested.get('path'))} ") or record.label
    return label if record.round is None else f"{label} · round {record.round}"


def anchor(index: int) -> str:
    """The id of a record's section in the page: its position, which no name can spoil."""
    return f"cell-{index}"


def status_text(statuses: Mapping[str, int]) -> str:
    """All attempted requests by status: "62 of 64 ok, 2 timeout"."""
    total = sum(statuses.values())
    if not total:
        return "no request was sent"
    others = [f"{count:,} {name}" for name, count in statuses.items() if name != "ok" and count]
    return ", ".join([f"{statuses.get('ok', 0):,} of {total:,} ok", *others])


@dataclass(frozen=True)
class Setting:
    """One setting as asked for and as run."""

    name: str
    requested: str
    effective: str
    mark: str  # "=", "≠", "→" (auto was resolved) or "" (nothing was asked)


def compare_settings(record: Record) -> list[Setting]:
    """Requested beside effective for every key of either that both could have."""
    requested, effective = flatten(record.requested), record.effective or {}
    names = [
        key for key, ran in effective.items() if key not in ("kernels", "notes", "fallbacks") and ran != {}
    ]
    rows = []
    for name in names:
        ran = effective[name]
        asked = requested.get(name)
        if name not in requested:
            rows.append(Setting(name, "", scalar(ran) if name != "pid" else str(ran), ""))
            continue
        if name == "path" and record.chosen is not None:
            asked = record.chosen.requested
        resolved = asked is None or asked == "auto"
        mark = "→" if resolved else "=" if plain(asked) == plain(ran) else "≠"
        rows.append(Setting(name, plain(asked), plain(ran), mark))
    return rows


def state_counts(records: Sequence[Record]) -> list[tuple[str, str, int]]:
    """Every state that occurs, its symbol and how many cells have it."""
    counts = {state: sum(record.state is state for record in records) for state in CellState}
    return [(state.value, STATE_SYMBOLS[state], count) for state, count in counts.items() if count]


def tally(records: Sequence[Record]) -> str:
    """How many cells ended in which state, in words: "3 OK, 1 FAILED"."""
    return ", ".join(f"{count:,} {state}" for state, _, count in state_counts(records))
