"""Which launches of a plan are arms that answer the same prompts, and which one is the reference. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.cell import Cell
from harness.plan import Launch
from paths.api import UserError

# what arms may differ in, as the command line calls it → fields of the EngineConfig
_DIFFERENCES: dict[str, tuple[str, ...]] = {
    "path": ("path", "impl"),
    "path.options": ("options",),
    "mtp": ("mtp",),
    "kv_dtype": ("kv_dtype",),
    "index_dtype": ("index_dtype",),
}
_NEUTRAL: dict[str, Any] = {
    "path": "",
    "impl": "",
    "options": {},
    "mtp": 0,
    "kv_dtype": "",
    "index_dtype": "",
}


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A launch whose answers are compared; its last cell carries the result."""

    launch: Launch
    reference: Launch  # the first of the group that runs; itself for the reference
    concurrencies: tuple[int, ...]  # 1 and the highest of the group; one of them where they are the same

    @property
    def cell(self) -> Cell:
        return self.launch.cells[-1]

    @property
    def name(self) -> str:
        return arm_name(self.cell)

    @property
    def is_reference(self) -> bool:
        return self.launch is self.reference

    @property
    def differs_in(self) -> list[str]:
        """Keys in which it differs from the reference."""
        own, other = self.cell.engine, self.reference.cells[-1].engine
        return [
            key
            for key, fields in _DIFFERENCES.items()
            if key != "path.options" or own.path == other.path  # every path has options of its own
            if any(getattr(own, field) != getattr(other, field) for field in fields)
        ]


def arm_name(cell: Cell) -> str:
    """An arm in words: its label without the load."""
    return cell.label.removesuffix(f" {cell.load}")


def find_arms(launches: Sequence[Launch], prompts: int) -> dict[str, Arm]:
    """launch_id → arm, of the first launch of each engine; empty where equivalence was not asked for.

    Raises UserError where nothing could be compared.
    """
    if not launches[0].cells[0].config.equivalence:
        return {}
    groups: dict[str, list[Launch]] = {}
    seen: set[tuple[str, str | None]] = set()  # engine and, in a comparison, arm: one path may run other code
    for launch in launches:
        _refuse_forced(launch)
        if (launch.engine_id, launch.arm) not in seen:  # in an experiment: in its first round
            seen.add((launch.engine_id, launch.arm))
            groups.setdefault(_work(launch.cells[-1]), []).append(launch)
    if all(len(group) < 2 for group in groups.values()):
        raise UserError(
            "equivalence=true: no two arms answer the same prompts; sweep path, mtp, kv_dtype or index_dtype,"
            " as in +path=generic_mrv1,dsa_mrv2, or set equivalence=false"
        )
    return {
        launch.launch_id: Arm(launch=launch, reference=group[0], concurrencies=_concurrencies(group, prompts))
        for group in groups.values()
        for launch in group
    }


def _refuse_forced(launch: Launch) -> None:
    """Raises UserError."""
    if launch.cells[0].engine.mtp_forced_al is not None:
        raise UserError(
            "equivalence=true: mtp_mode=forced accepts wrong drafts, so its answers mean nothing; set"
            " mtp_mode=real or equivalence=false"
        )


def _work(cell: Cell) -> str:
    """What the arms of a group have in common: everything but what arms may differ in."""
    engine = dataclasses.replace(cell.engine, **_NEUTRAL).identity()
    return repr((engine, cell.isl, cell.osl, cell.config.workload.model_dump(), cell.config.seed))


def _concurrencies(group: Sequence[Launch], prompts: int) -> tuple[int, ...]:
    """Open loops without a limit count as all prompts at once."""
    highest = max(cell.config.concurrency or prompts for launch in group for cell in launch.cells)
    return (1,) if highest == 1 else (1, highest)
