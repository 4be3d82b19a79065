"""What is going on now: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable

from rich.markup import escape
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from harness.accuracy.score import AccuracyScore
from harness.accuracy.words import score_words
from harness.cell import Cell
from harness.console import clipped, err
from harness.records import Record, flagged


class Progress:
    """Of one run. A context manager."""

    def __init__(self, cells: int) -> None:
        self._cells = cells
        self._done = 0
        self._live = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            console=err,
            transient=True,
            auto_refresh=False,  # its thread would take the interpreter away from the client that measures
        )
        self._task = self._live.add_task("starting", total=None)

    def expect(self, cells: int) -> None:
        """So many more than were planned at first."""
        self._cells += cells

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

    def scored(self, cell: Cell, score: AccuracyScore) -> None:
        err.print(f"{cell.label}: {score_words(score)}", markup=False, soft_wrap=True)

    def cell_done(self, record: Record) -> None:
        self._done += 1
        color = {"OK": "green", "FALLBACK": "yellow"}.get(record.state, "red")
        flags = flagged(record)
        reason = f" [dim]{escape(clipped(record.reason))}[/]" if record.reason else ""
        err.print(
            f"[{self._done}/{self._cells}] {escape(record.label)} [{color}]{record.state}[/]"
            + (f" [yellow]check {escape(', '.join(flags))} failed[/]" if flags else "")
            + reason
        )

    def _show(self, text: str, fraction: float | None) -> None:
        total = None if fraction is None else 1.0
        self._live.update(
            self._task, description=escape(text), total=total, completed=fraction or 0.0, refresh=True
        )
