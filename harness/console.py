"""The two streams that a person reads, and the plan on them: results on stdout, everything else on stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from harness.cell import Cell
from harness.launch import worker_command
from harness.plan import Launch
from harness.streams import silence


class _QuietConsole(Console):
    """Where nobody reads any more, nothing is printed; the run goes on and keeps its exit code."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        silence(self.file)


# a pipe has no width: give tables room instead of rich's 80 columns
out = _QuietConsole(highlight=False, width=None if sys.stdout.isatty() else 120)
err = _QuietConsole(stderr=True, highlight=False, soft_wrap=True)

_LONGEST_REASON = 300


def clipped(reason: str) -> str:
    """Short enough for a terminal; the whole reason is in the record and in the report."""
    return reason if len(reason) <= _LONGEST_REASON else reason[:_LONGEST_REASON] + " …"


def print_plan(launches: Sequence[Launch], duplicates: int) -> None:
    """Launches and their cells in execution order."""
    cells = sum(len(launch.cells) for launch in launches)
    err.print(f"[bold]Plan[/]: {cells} cells on {len(launches)} launches")
    if duplicates:
        err.print(f"[yellow]note[/]: {duplicates} duplicate cells left out")
    for said in dict.fromkeys(said for launch in launches for cell in launch.cells for said in _choice(cell)):
        err.print(said)
    seen: set[int] = set()
    for launch in launches:
        if launch.round is not None and launch.round not in seen:
            seen.add(launch.round)
            err.print(f"[bold]{'Pair' if launch.arm else 'Round'} {launch.round}[/]")
        arm = f" {launch.arm}," if launch.arm else ""
        place = f"(pair {launch.pair}, slot {launch.slot})"
        err.print(f"  {launch.launch_id} {place}{arm} engine {launch.engine_id}")
        for cell in launch.cells:
            err.print(f"      {escape(cell.label)}  [dim]{cell.cell_id}[/]")


def _choice(cell: Cell) -> list[str]:
    """How `+path=auto` came to the cell's path, and what it warns of."""
    chosen = cell.chosen
    if chosen is None:
        return []
    said = f"[yellow]note[/]: path {chosen.requested} took {chosen.chosen}: {escape(chosen.reason)}"
    return [said, *(f"[yellow]warning[/]: {escape(warning)}" for warning in chosen.warnings)]


def print_commands(launches: Sequence[Launch], config_dirs: Sequence[Path]) -> None:
    """The exact commands: what starts each engine, what measures each cell alone."""
    for launch in launches:
        out.print(f"# {launch.launch_id}: engine {launch.engine_id}", markup=False, soft_wrap=True)
        out.print(" ".join(worker_command("FD")), markup=False, soft_wrap=True)
        for cell in launch.cells:
            out.print(cell.command(config_dirs), markup=False, soft_wrap=True)
