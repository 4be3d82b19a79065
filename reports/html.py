"""report.html: one self-contained page about a run. No network; complete without its script and in print.

write_report(Path("results/20260101-120000-ab12"))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.headlines import notes
from harness.recording import EXIT_OF_STATE
from harness.records import METRIC_DEF_VERSION, Record, RecordError, write_text_atomically
from reports import tables
from reports.accuracy_section import accuracy_section
from reports.attribution_section import attribution_section
from reports.equivalence_section import equivalence_section
from reports.gate.plan_file import COMPARISON
from reports.gate.run_gate import judge_folder
from reports.load import RunData, flatten, load_run
from reports.machine import machine_sentence
from reports.plots import draw_panels
from reports.speculation_section import speculation_section
from reports.templating import script_hash, templates
from reports.verdict_page.page import write_comparison

OPEN_LAUNCHES = 4  # up to so many launches show their kernels without a click
BYTE_KEYS = ("weight_bytes", "kv_cache_bytes", "graph_memory_bytes", "memory_high_water")
WARNING_ORIGIN = "default-1.0"
_GRAPHS_AND_WAITS = {
    "graphs": "graphs",
    "breaks_per_layer": "breaks per layer",
    "copies_per_step": "copies per step",
    "waits_per_step": "waits per step",
}


def write_report(run_dir: Path, *, warn: Callable[[str], None] | None = None) -> Path:
    """Render `run_dir`/report.html, of its comparison if it has one, and return its path. Raises RecordError.

    A comparison that cannot be judged is shown as a run that says so; `warn` is told why, too.
    """
    problem = None
    if (run_dir / COMPARISON).exists():
        try:
            return write_comparison(run_dir, judge_folder(run_dir))
        except RecordError as error:
            problem = f"the comparison cannot be judged: {error}"
            if warn is not None:
                warn(problem)
    data = load_run(run_dir)
    data.warnings.extend([problem] if problem else [])
    path = run_dir / "report.html"
    write_text_atomically(path, render(data))
    return path


def render(data: RunData) -> str:
    """The page as text. Everything that comes from a record is escaped, in one pass."""
    return templates().get_template("report.html").render(page_context(data), script_hash=script_hash())


@dataclass(frozen=True)
class Cell:
    """A record with what its own section shows."""

    record: Record
    anchor: str
    label: str
    path: str
    statuses: str
    metrics: list[tuple[str, str, tables.Figure]]  # name, arrow, figure; those that have a value
    missing: list[tuple[str, list[str]]]  # reason, names of the metrics that have none for it
    notes: list[str]
    requested: list[tuple[str, str]]
    counters: list[tuple[str, str]]


@dataclass(frozen=True)
class Launch:
    """One engine launch: what it was asked for, what it ran, what its start cost."""

    launch_id: str
    path: str
    cells: int
    headline: str
    effective: dict[str, Any] | None
    settings: list[tables.Setting]
    kernels: list[tuple[str, str]]  # op, calls by implementation
    fallbacks: list[str]
    notes: list[str]
    scale_warning: bool
    startup: dict[str, str]


def page_context(data: RunData) -> dict[str, Any]:
    """Everything that the template reads, by name."""
    records = data.records
    headers = tables.columns(records)
    rows = tables.result_rows(records, headers)
    launches = [_launch(group) for group in _by_launch(records)]
    panels, plot_note = draw_panels(records)
    environment = flatten(data.run.environment)
    return {
        "data": data,
        "run": data.run,
        "sentence": summary_sentence(data),
        "exit_words": tables.EXIT_WORDS.get(data.run.exit_code) if data.run.exit_code is not None else None,
        "exit_cause": exit_cause(data),
        "state_counts": tables.state_counts(records),
        "columns": headers,
        "rows": rows,
        "problems": tables.problems(rows),
        "flagged": [row for row in rows if row.failed_checks],
        "cells": [_cell(index, record) for index, record in enumerate(records)],
        "launches": launches,
        "open_launches": len(launches) <= OPEN_LAUNCHES,
        "startup_keys": list(dict.fromkeys(key for launch in launches for key in launch.startup)),
        "check_names": list(dict.fromkeys(name for record in records for name in record.checks)),
        "accuracy": accuracy_section(data),
        "attribution": attribution_section(data),
        "speculation": speculation_section(data),
        "equivalence": equivalence_section(data),
        "panels": panels,
        "plot_note": plot_note,
        "machine": machine_sentence(data.run.environment),
        "blocked": _blocked(data.run.environment),
        "environment": {
            key: tables.bytes_text(value) if key.endswith("_bytes") and value else tables.plain(value)
            for key, value in environment.items()
            if key != "blocked_variables"
        },
        "metric_def_versions": sorted({record.metric_def_version for record in records})
        or [METRIC_DEF_VERSION],
        "workload_versions": sorted({record.workload_version for record in records}),
        "DASH": tables.DASH,
        "symbols": {state.value: symbol for state, symbol in tables.STATE_SYMBOLS.items()},
    }


def summary_sentence(data: RunData) -> str:
    """What ran, how it ended, where, when and for how long, in plain words."""
    run, records = data.run, data.records
    if records:
        paths = list(dict.fromkeys(tables.plain(record.requested.get("path")) for record in records))
        models = list(dict.fromkeys(tables.plain(record.requested.get("model")) for record in records))
        usable = sum(record.state.has_numbers for record in records)
        what = f"{_listed(paths)} on {_listed(models)}: {usable:,} of {len(records):,} cells have numbers"
        what += f" ({tables.tally(records)})."
    else:
        what = "No cell was measured."
    took = tables.duration(run.started_at, run.finished_at)
    if run.finished_at is None:
        end = f"Started {run.started_at}; the run did not end, or is still going on."
    else:
        end = f"Started {run.started_at}, took {took}." if took else f"Started {run.started_at}."
    return f"{what} {end}"


def exit_cause(data: RunData) -> str | None:
    """The first cell that asks for the run's exit code, with what it failed; None where no cell does."""
    code = data.run.exit_code
    asking = [record for record in data.records if EXIT_OF_STATE[record.state] == code]
    if not code or not asking:
        return None
    first = asking[0]
    more = f", and {len(asking) - 1} more" if len(asking) > 1 else ""
    return f"{first.launch_id}, {first.label}: {first.state}: {first.reason}{more}"


def _listed(names: Sequence[str], most: int = 4) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _by_launch(records: Sequence[Record]) -> list[list[Record]]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.launch_id, []).append(record)
    return list(groups.values())


def _launch(records: Sequence[Record]) -> Launch:
    """A launch as its latest record saw it, with the steps and calls of all its cells."""
    last = next((record for record in reversed(records) if record.effective), records[-1])
    startup = next((record.startup for record in records if record.startup), None)
    effective = _over_cells(records, last.effective)
    kernels = (effective or {}).get("kernels") or {}
    return Launch(
        launch_id=last.launch_id,
        path=tables.plain(last.requested.get("path")),
        cells=len(records),
        headline=_headline(effective or {}),
        effective=effective,
        settings=tables.compare_settings(last.model_copy(update={"effective": effective})),
        kernels=[(op, _calls(implementations)) for op, implementations in kernels.items()],
        fallbacks=_said(records, "fallbacks"),
        notes=_said(records, "notes"),
        scale_warning=(effective or {}).get("k_scale_origin") == WARNING_ORIGIN,
        startup={key: _quantity(key, value) for key, value in (startup or {}).items()},
    )


def _over_cells(records: Sequence[Record], last: dict[str, Any] | None) -> dict[str, Any] | None:
    """`last`, with steps and kernel calls summed: each record counts those of its own cell."""
    if last is None:
        return None
    steps: dict[str, Counter[str]] = {"graph_modes": Counter(), "draft_modes": Counter()}
    kernels: dict[str, Counter[str]] = {}
    for record in records:
        ran = record.effective or {}
        for key, counted in steps.items():
            counted.update(ran.get(key) or {})
        for op, calls in (ran.get("kernels") or {}).items():
            kernels.setdefault(op, Counter()).update(calls)
    return last | {
        **{key: dict(counted) for key, counted in steps.items()},
        "kernels": {op: dict(calls) for op, calls in kernels.items()},
    }


def _calls(implementations: Mapping[str, int]) -> str:
    called = ", ".join(f"{name} {calls:,}" for name, calls in implementations.items() if calls)
    return called or "not called"


def _said(records: Sequence[Record], key: str) -> list[str]:
    """Every sentence that any cell of a launch recorded under `key`, once."""
    return list(dict.fromkeys(text for record in records for text in (record.effective or {}).get(key) or ()))


def _headline(effective: Mapping[str, Any]) -> str:
    """The few facts that tell one path from another, in one line."""
    steps, drafts = effective.get("graph_modes") or {}, effective.get("draft_modes") or {}
    parts = [
        f"{effective.get('model_class', '?')}, runner {effective.get('runner', '?')}",
        f"compile mode {effective.get('compile_mode', '?')}",
        f"steps by graph mode {tables.scalar(steps)}",
        *([f"drafts by graph mode {tables.scalar(drafts)}"] if drafts else []),
        *(f"{words} {_ratio(effective.get(key))}" for key, words in _GRAPHS_AND_WAITS.items()),
        f"dtype {effective.get('dtype', '?')}, KV cache {effective.get('kv_dtype', '?')}",
        f"index cache {effective.get('index_dtype', '?')}",
        f"{tables.scalar(effective.get('kv_bytes_per_token'))} bytes per token",
        f"scale origin {effective.get('k_scale_origin', '?')}",
    ]
    return " · ".join(parts)


def _ratio(value: float | None) -> str:
    return tables.DASH if value is None else f"{value:.3g}"


def _blocked(environment: Mapping[str, Any]) -> list[str]:
    return [str(name) for name in environment.get("blocked_variables") or []]


def _quantity(key: str, value: Any) -> str:
    if value is not None and key.endswith(BYTE_KEYS):
        return tables.bytes_text(value)
    if isinstance(value, float) and key.endswith(("_s", "_seconds")):
        return f"{tables.number(value)} s"
    return tables.scalar(value)


def _missing(record: Record) -> dict[str, list[str]]:
    """Reason → names of the metrics without a value."""
    reasons: dict[str, list[str]] = {}
    for name, metric in record.metrics.items():
        if metric.value is None:
            reasons.setdefault(tables.figure(metric).note, []).append(name)
    return reasons


def _cell(index: int, record: Record) -> Cell:
    return Cell(
        record=record,
        anchor=tables.anchor(index),
        label=tables.cell_label(record),
        path=tables.plain(record.requested.get("path")),
        statuses=tables.status_text(record.statuses),
        metrics=[
            (name, tables.ARROWS[metric.better], tables.figure(metric))
            for name, metric in record.metrics.items()
            if metric.value is not None
        ],
        missing=list(_missing(record).items()),
        notes=notes(record),
        requested=[(key, tables.plain(value)) for key, value in flatten(record.requested).items()],
        counters=[(key, _quantity(key, value)) for key, value in flatten(record.counters or {}).items()],
    )
