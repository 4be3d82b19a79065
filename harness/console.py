"""What a person sees: the plan, progress, one table, where the report is. All of it goes to a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as _Bar
from rich.table import Table

from harness.cell import Cell, load_words
from harness.launch import worker_command
from harness.plan import Launch
from harness.records import Metric, Record

# a pipe has no width: give the table room instead of rich's 80 columns
out = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
_LONGEST_REASON = 300
# requested keys that get a column when the run varies them
_WORTH_A_COLUMN = (
    "model", "checkpoint", "dtype", "index_dtype", "threads", "workload", "isl", "osl", "num_prompts",
    "burstiness", "seed",
)  # fmt: skip

err = Console(stderr=True, highlight=False, soft_wrap=True)


def print_plan(launches: Sequence[Launch], duplicates: int) -> None:
    """Launches and their cells in execution order."""
    cells = sum(len(launch.cells) for launch in launches)
    err.print(f"[bold]Plan[/]: {cells} cells on {len(launches)} launches")
    if duplicates:
        err.print(f"[yellow]note[/]: {duplicates} duplicate cells left out")
    for launch in launches:
        err.print(f"  {launch.launch_id} (pair {launch.pair}, slot {launch.slot}) engine {launch.engine_id}")
        for cell in launch.cells:
            err.print(f"      {escape(cell.label)}  [dim]{cell.cell_id}[/]")


def print_commands(launches: Sequence[Launch], config_dirs: Sequence[Path]) -> None:
    """The exact commands: what starts each engine, what measures each cell alone."""
    for launch in launches:
        out.print(f"# {launch.launch_id}: engine {launch.engine_id}", markup=False, soft_wrap=True)
        out.print(" ".join(worker_command("FD")), markup=False, soft_wrap=True)
        for cell in launch.cells:
            out.print(cell.command(config_dirs), markup=False, soft_wrap=True)


class Progress:
    """What is going on now: a live line on a terminal, plain lines elsewhere. A context manager."""

    def __init__(self, cells: int) -> None:
        self._cells = cells
        self._done = 0
        self._live = _Bar(
            TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=err, transient=True
        )
        self._task = self._live.add_task("starting", total=None)

    def __enter__(self) -> Progress:
        if err.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def engine_says(self, launch_id: str, path: str) -> Callable[[str], None]:
        """Receives the engine's own words during start-up."""

        def show(text: str) -> None:
            self._show(f"{launch_id} {path}: {text}", None)
            if not err.is_terminal:
                err.print(f"{launch_id} {path}: {text}", markup=False, soft_wrap=True)

        return show

    def load_says(self, cell: Cell) -> Callable[[str, float], None]:
        """Receives the phase of a load and how much of it is done, 0 to 1."""
        return lambda phase, fraction: self._show(f"{cell.label}: {phase}", fraction)

    def cell_done(self, record: Record) -> None:
        self._done += 1
        color = {"OK": "green", "FALLBACK": "yellow"}.get(record.state, "red")
        reason = f" [dim]{escape(_clipped(record.reason))}[/]" if record.reason else ""
        err.print(f"[{self._done}/{self._cells}] {escape(record.label)} [{color}]{record.state}[/]{reason}")

    def _show(self, text: str, fraction: float | None) -> None:
        total = None if fraction is None else 1.0
        self._live.update(self._task, description=escape(text), total=total, completed=fraction or 0.0)


def print_result(records: Sequence[Record], report: Path) -> None:
    """One table of all cells, why some have no numbers, and where the report is."""
    models = dict.fromkeys(str(record.requested["model"]) for record in records)
    varied = [key for key in _WORTH_A_COLUMN if len({repr(record.requested[key]) for record in records}) > 1]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), title_justify="left")
    table.title = f"model {', '.join(models)}"
    for heading in ("path", "kv dtype"):
        table.add_column(heading, overflow="fold")
    for heading in (*varied, "load"):
        table.add_column(heading, no_wrap=True)
    for heading in ("out tok/s ↑", "TPOT ms ↓", "TTFT p50 ms ↓", "n"):
        table.add_column(heading, justify="right", min_width=len(heading) if heading == "n" else 8)
    table.add_column("state", overflow="fold")
    for record in records:
        table.add_row(*_row(record, varied))
    out.print(table)
    for record in records:
        if record.reason:
            out.print(
                f"{record.label}: {record.state}: {_clipped(record.reason)}", markup=False, soft_wrap=True
            )
    out.print(f"report: {report}", markup=False, soft_wrap=True)


def _clipped(reason: str) -> str:
    """The whole reason is in the record and in the report."""
    return reason if len(reason) <= _LONGEST_REASON else reason[:_LONGEST_REASON] + " …"


def _row(record: Record, extra: Sequence[str]) -> list[str]:
    requested, effective = record.requested, record.effective or {}
    kv_dtype = str(requested["kv_dtype"])
    if effective.get("kv_dtype") not in (None, kv_dtype):
        kv_dtype += f" → {effective['kv_dtype']}"
    flags = [name for name, check in record.checks.items() if check.ok is False]
    state = str(record.state) + (f" (check {', '.join(flags)})" if flags else "")
    return [
        escape(str(requested["path"])),
        kv_dtype,
        *(escape(str(requested[key])) for key in extra),
        load_words(requested["concurrency"], requested["request_rate"]),
        _shown(record.metrics.get("out_tps"), 1),
        _shown(record.metrics.get("tpot_pooled_ms"), 3),
        _shown(record.metrics.get("ttft_p50_ms"), 2),
        _shown(record.metrics.get("requests_ok"), 0),
        state,
    ]


def _shown(metric: Metric | None, digits: int) -> str:
    return "–" if metric is None or metric.value is None else f"{metric.value:,.{digits}f}"
