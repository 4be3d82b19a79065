"""Two arms made of numbers: pairs of launches in ABBA order, and A/A noise beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from harness.composition import packaged_conf
from harness.records import CellState
from harness.tier import Pairs, Tier, read_tier
from reports.compare.cells import ArmCell, LaunchNumbers
from reports.compare.compare import Arms, compare
from reports.compare.floor import Noise, NoiseFloor
from reports.compare.metric_table import METRICS

PR: Tier = read_tier("pr", [Path(packaged_conf())], list(METRICS))
QUIET = (-0.004, 0.003, 0.001, -0.002, 0.004, -0.003)  # losses of A/A pairs, sd 0.35 %


def tier(*, gated=("out_tps",), low=4, high=6, step=2, **more) -> Tier:
    return Tier(
        name="test", pairs=Pairs(min=low, max=high, step=step), gated=list(gated), floor_days=14, **more
    )


def launch(arm: str, pair: int, values, *, first=None, absent=None, **more) -> LaunchNumbers:
    """ABBA: the baseline runs first in even pairs. `values`: metric → number, or the number of out_tps."""
    first = (pair % 2 == 0) == (arm == "b") if first is None else first
    numbers = values if isinstance(values, dict) else {"out_tps": values}
    return LaunchNumbers(
        launch_id=f"{arm}{pair}",
        pair=pair,
        slot=0 if first else 1,
        values=numbers,
        absent=absent or {},
        **more,
    )


def broken(arm: str, pair: int, state: str, reason: str = "it broke") -> LaunchNumbers:
    return launch(arm, pair, {}, state=CellState(state), cause=f"{state}: {reason}")


def cell(arm: str, values, *, cell_id="c16", **more) -> ArmCell:
    launches = [
        one if isinstance(one, LaunchNumbers) else launch(arm, pair, one) for pair, one in enumerate(values)
    ]
    return ArmCell(cell_id=cell_id, name=more.pop("name", cell_id), launches=tuple(launches), **more)


def floor_for(*cells: str, metrics=("out_tps", "tpot_pooled_ms"), losses=QUIET) -> NoiseFloor:
    return NoiseFloor(
        noise={(cell_id, name): Noise(losses=tuple(losses)) for cell_id in cells for name in metrics},
        source="aa.json",
        measured_on="2026-01-01",
    )


def compare_cells(baseline, candidate, *, tier=PR, floor=None, interleaved=True, **more):
    """Comparison of two lists of ArmCell."""
    sides = [{one.cell_id: one for one in side} for side in (baseline, candidate)]
    floor = floor_for(*sides[0], *sides[1]) if floor is None else floor
    arms = Arms(baseline=sides[0], candidate=sides[1], interleaved=interleaved, **more)
    return compare(arms, tier=tier, floor=floor)


def compare_values(baseline, candidate, *, metric="out_tps", **more):
    """The finding of one metric in one cell, from its values per pair."""
    b, c = ([{metric: value} for value in side] for side in (baseline, candidate))
    more.setdefault("tier", tier(gated=[metric]))
    more.setdefault("floor", floor_for("c16", metrics=[metric]))
    found = compare_cells([cell("b", b)], [cell("c", c)], **more)
    return next(one for one in found.findings if one.rule is not None)


def noisy(center: float, sd: float, n: int, seed: int) -> list[float]:
    return list(center * np.exp(np.random.default_rng(seed).normal(0, sd, n)))
