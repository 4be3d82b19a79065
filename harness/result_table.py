"""The table that ends a run: one row per cell, then why some have no numbers, then where the report is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from harness.accuracy.score_table import print_scores
from harness.cell import load_words, mtp_words
from harness.console import clipped, out
from harness.headlines import latency_metrics, notes
from harness.records import CellState, Metric, Record, flagged

# requested keys that get a column when the run varies them
_WORTH_A_COLUMN = (
    "model", "checkpoint", "dtype", "index_dtype", "threads", "workload", "isl", "osl", "num_prompts",
    "burstiness", "seed",
)  # fmt: skip

_OPTION = "options."
_LATENCIES = {
    "ttft_p50_ms": "TTFT p50 ms ↓",
    "ttft_sched_p50_ms": "TTFT from schedule p50 ms ↓",
}


def print_result(records: Sequence[Record], report: Path) -> None:
    """What did not run as labelled, one table of all cells, why some have no numbers, where the report is."""
    for record in records:
        if record.state is CellState.PATH_MISMATCH:
            _print_reason(record)
    models = dict.fromkeys(str(record.requested["model"]) for record in records)
    varied = _varied(records)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), title_justify="left")
    table.title = f"model {', '.join(models)}"
    drafts = any(record.requested.get("mtp") for record in records)
    for heading in ("path", "kv dtype", *(["mtp"] if drafts else [])):
        table.add_column(heading, overflow="fold")
    for heading in (*varied, "load"):
        table.add_column(heading, no_wrap=True)
    latencies = latency_metrics(records, ["ttft"])
    lengths = ["AL ↑"] if drafts else []
    figures = ["out tok/s ↑", "TPOT ms ↓", *lengths, *(_LATENCIES[name] for name in latencies)]
    for heading in (*figures, "n"):
        table.add_column(heading, justify="right", min_width=len(heading) if heading == "n" else 8)
    table.add_column("state", overflow="fold")
    for record in records:
        table.add_row(*_row(record, varied, latencies, drafts=drafts))
    out.print(table)
    print_scores(records, settings=lambda record: [f"{n}={_settings(record).get(n, '–')}" for n in varied])
    for record in records:
        if record.state is CellState.PATH_MISMATCH:
            continue  # stands above the table
        if record.reason:
            _print_reason(record)
        elif flagged(record):  # the reason of an INVALID cell says it already
            details = "; ".join(f"{name}: {record.checks[name].detail}" for name in flagged(record))
            out.print(f"{record.label}: check {clipped(details)}", markup=False, soft_wrap=True)
    said = Counter(note for record in records for note in notes(record))
    for note, cells in said.items():
        where = "" if len(records) == 1 else f" ({cells} of {len(records)} cells)"
        out.print(f"note{where}: {note}", markup=False, soft_wrap=True)
    out.print(f"report: {report}", markup=False, soft_wrap=True)


def _print_reason(record: Record) -> None:
    text = f"{record.label}: {record.state}: {clipped(record.reason or '')}"
    out.print(text, markup=False, soft_wrap=True, style="red" if not record.state.has_numbers else None)


def _varied(records: Sequence[Record]) -> list[str]:
    """Settings in which the records differ, apart from the columns that are always there.

    Options belong to their path: two paths differ in them anyway, so they must differ within one.
    """
    values: dict[str, dict[str, set[str]]] = {}  # name → path → values
    for record in records:
        for name, value in _settings(record).items():
            path = str(record.requested["path"]) if name.startswith(_OPTION) else ""
            values.setdefault(name, {}).setdefault(path, set()).add(repr(value))
    return [name for name, by_path in values.items() if any(len(each) > 1 for each in by_path.values())]


def _settings(record: Record) -> dict[str, Any]:
    """What may get a column, by name; the path's own options one by one."""
    requested = record.requested
    options = {f"{_OPTION}{name}": value for name, value in requested["options"].items()}
    place = {"arm": record.arm, "round": record.round}
    capacities = {f"engine.{name}": value for name, value in (requested.get("engine") or {}).items()}
    return place | {name: requested[name] for name in _WORTH_A_COLUMN} | capacities | options


def _row(record: Record, extra: Sequence[str], latencies: Sequence[str], *, drafts: bool) -> list[str]:
    requested, effective = record.requested, record.effective or {}
    kv_dtype = str(requested["kv_dtype"])
    if effective.get("kv_dtype") not in (None, kv_dtype):
        kv_dtype += f" → {effective['kv_dtype']}"
    flags = flagged(record)
    state = str(record.state) + (f" (check {', '.join(flags)})" if flags else "")
    return [
        escape(str(requested["path"])),
        kv_dtype,
        *([mtp_words(requested.get("mtp", 0), requested.get("mtp_forced_al"))] if drafts else []),
        *(escape(str(_settings(record).get(key, "–"))) for key in extra),
        load_words(requested["concurrency"], requested["request_rate"]),
        _shown(record.metrics.get("out_tps"), 1),
        _shown(record.metrics.get("tpot_pooled_ms"), 3),
        *([_shown(record.metrics.get("al"), 2)] if drafts else []),
        *(_shown(record.metrics.get(name), 2) for name in latencies),
        _shown(record.metrics.get("requests_ok"), 0),
        state,
    ]


def _shown(metric: Metric | None, digits: int) -> str:
    return "–" if metric is None or metric.value is None else f"{metric.value:,.{digits}f}"
