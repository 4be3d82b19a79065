"""Cells → ordered launches. Pure: the same cells give the same plan and the same ids."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from harness.cell import Cell


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One engine in fresh processes and the cells that it serves, one after the other.

    Launches that differ in the path alone are adjacent and share `pair`; `slot` is the place within it.
    """

    launch_id: str
    pair: int
    slot: int
    order: int
    round: int | None = None  # of an experiment, or the pair of a comparison, from 1
    arm: Literal["baseline", "candidate"] | None = None  # of a comparison
    scores: bool = True  # whether accuracy is scored on it, where it is asked for
    cells: tuple[Cell, ...]

    @property
    def engine_id(self) -> str:
        return self.cells[0].engine.identity()

    def describe(self) -> dict[str, Any]:
        """What run.json says about it."""
        first = self.cells[0]
        return {
            "launch_id": self.launch_id,
            "pair": self.pair,
            "slot": self.slot,
            "order": self.order,
            "round": self.round,
            "arm": self.arm,
            "engine_id": self.engine_id,
            "arm_id": first.arm_id,
            "path": first.engine.path,
            "cells": [
                {"cell_id": cell.cell_id, "label": cell.label, "folder": cell.folder} for cell in self.cells
            ],
        }


def build_plan(cells: Sequence[Cell], *, rounds: int | None = None) -> tuple[list[Launch], int]:
    """Launches in execution order, and how many duplicate cells were left out.

    Cells with the same engine share a launch, in the order in which they were asked for. Every second pair
    runs its paths in reverse (A B, B A, …), so that no path always runs first. With `rounds`, all of it is
    done so often, and what one round runs forwards the next runs in reverse.
    """
    unique: dict[tuple[str, str], Cell] = {}
    for cell in cells:
        unique.setdefault((cell.cell_id, cell.engine.identity()), cell)
    ordered = list(unique.values())
    pairs: dict[str, dict[str, list[Cell]]] = {}
    for cell in ordered:
        engines = pairs.setdefault(_without_path(cell), {})
        engines.setdefault(cell.engine.identity(), []).append(cell)
    launches: list[Launch] = []
    for turn in range(rounds or 1):
        for index, engines in enumerate(pairs.values()):
            groups = list(engines.values())
            for slot, group in enumerate(reversed(groups) if (turn + index) % 2 else groups):
                order = len(launches)
                launches.append(
                    Launch(
                        launch_id=f"L{order:03d}",
                        pair=turn * len(pairs) + index,
                        slot=slot,
                        order=order,
                        round=None if rounds is None else turn + 1,
                        cells=tuple(group),
                    )
                )
    return launches, len(cells) - len(ordered)


def _without_path(cell: Cell) -> str:
    return dataclasses.replace(cell.engine, path="", impl="", options={}).identity()
