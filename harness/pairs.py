"""Two arms → pairs of launches in ABBA order. Pure: the same cells give the same plan and the same ids."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.cell import Cell
from harness.plan import Launch

ArmName = Literal["baseline", "candidate"]
REPEATS = 2  # pairs of a cell that may be measured again, for a cause known before their numbers were read
_PARITIES = 2


@dataclass(frozen=True, kw_only=True)
class CellPair:
    """The same cell in both arms; `cell_id` is one, so that both get the same prompts."""

    baseline: Cell
    candidate: Cell

    @property
    def cell_id(self) -> str:
        return self.candidate.cell_id


@dataclass(frozen=True, kw_only=True)
class PairPlan:
    """Every pair of launches that a run may need. Pairs count from 1.

    A lane is what one engine of the candidate and one of the baseline serve: their cells, the load
    ascending. Odd pairs run the baseline first and climb the loads, even ones the reverse.
    """

    lanes: tuple[tuple[CellPair, ...], ...]
    most: int  # pairs that a tier allows

    @property
    def last(self) -> int:
        """Number of the last pair that there is: repeats keep the order of the pair that they replace."""
        return self.most + REPEATS * _PARITIES

    @property
    def cell_ids(self) -> list[str]:
        return [pair.cell_id for lane in self.lanes for pair in lane]

    def launches(self, pair: int, cells: Collection[str] | None = None) -> list[Launch]:
        """The launches of one pair, in order; with `cells` (ids) only what these need."""
        planned = [launch for index in range(len(self.lanes)) for launch in self._of_lane(pair, index, cells)]
        return [launch for launch in planned if launch.cells]

    def _of_lane(self, pair: int, index: int, cells: Collection[str] | None) -> list[Launch]:
        odd = pair % _PARITIES == 1
        arms: tuple[ArmName, ArmName] = ("baseline", "candidate") if odd else ("candidate", "baseline")
        wanted = [one for one in self.lanes[index] if cells is None or one.cell_id in cells]
        ladder = wanted if odd else wanted[::-1]
        number = (pair - 1) * len(self.lanes) + index
        return [
            Launch(
                launch_id=f"L{2 * number + slot:03d}",
                pair=number,
                slot=slot,
                order=2 * number + slot,
                round=pair,
                arm=arm,
                scores=pair == 1,  # once per arm: greedy answers of another launch say little more
                cells=tuple(getattr(one, arm) for one in ladder),
            )
            for slot, arm in enumerate(arms)
        ]

    def pair_of(self, number: int) -> int:
        """The pair that a launch's `pair` belongs to: lanes share it."""
        return number // len(self.lanes) + 1


def plan_pairs(cells: Sequence[CellPair], *, most: int) -> tuple[PairPlan, int]:
    """The plan, and how many duplicate cells were left out. Lanes keep the order of the command line."""
    lanes: dict[tuple[str, str], dict[str, CellPair]] = {}
    for cell in cells:
        engines = (cell.baseline.engine.identity(), cell.candidate.engine.identity())
        lanes.setdefault(engines, {}).setdefault(cell.cell_id, cell)
    plan = PairPlan(
        lanes=tuple(tuple(sorted(lane.values(), key=_load)) for lane in lanes.values()), most=most
    )
    return plan, len(cells) - len(plan.cell_ids)


def _load(cell: CellPair) -> tuple[float, float]:
    config = cell.candidate.config
    return (config.concurrency or 0, config.request_rate or 0.0)


def missing_pairs(usable: Collection[int], *, wanted: int) -> dict[int, int]:
    """How many odd (1) and even (0) pairs a cell still needs for `wanted` balanced ones."""
    odd = sum(pair % _PARITIES for pair in usable)
    return {1: max(0, (wanted + 1) // 2 - odd), 0: max(0, wanted // 2 - (len(usable) - odd))}


def next_pairs(
    plan: PairPlan, needs: Mapping[str, Mapping[int, int]], *, after: Mapping[str, int]
) -> dict[int, set[str]]:
    """Pair → ids of its cells. `needs`: by cell and parity; `after`: the last pair that a cell had."""
    found: dict[int, set[str]] = {}
    for cell_id, need in needs.items():
        left = dict(need)
        for pair in range(after.get(cell_id, 0) + 1, plan.last + 1):
            if left[pair % _PARITIES] > 0:
                left[pair % _PARITIES] -= 1
                found.setdefault(pair, set()).add(cell_id)
    return dict(sorted(found.items()))
