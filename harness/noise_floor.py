"""results/aa/<fingerprint>.json: what the baseline differs from itself on this machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from harness.cell import Cell
from harness.pairs import PairPlan
from harness.records import METRIC_DEF_VERSION, WORKLOAD_VERSION, Record
from harness.tier import Tier
from harness.versioned_json import read_versioned
from reports.compare.cells import collect
from reports.compare.detectable import in_words
from reports.compare.floor import FEWEST_PAIRS, Noise
from reports.compare.judge import usable_losses
from reports.compare.metric_table import METRICS
from reports.compare.pairing import pair_launches
from reports.gate.plan_file import (
    FLOOR_SCHEMA_VERSION,
    FloorEntry,
    FloorFile,
    floor_entries,
    read_floor,
    write_floor,
)

FOLDER = "aa"
# of the fingerprint of a machine; a name, a clock reading or free memory are no reason to measure again
MACHINE = ("cpu", "cores", "gpu", "kernel", "governor", "python")
ENGINES = ("torch", "triton", "numpy", "vllm", "sglang")


def fingerprint(environment: Mapping[str, Any], cells: Sequence[Cell]) -> str:
    """16 hex digits: machine, versions, and what the baseline is, but for its load and code revision."""
    packages = environment.get("packages") or {}
    engines = {
        json.dumps([cell.engine.path, cell.engine.impl, cell.engine.options, cell.engine.threads])
        for cell in cells
    }
    content = {
        "machine": {name: environment.get(name) for name in MACHINE},
        "packages": {name: packages.get(name) for name in ENGINES},
        "versions": [METRIC_DEF_VERSION, WORKLOAD_VERSION],
        "engines": sorted(engines),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def floor_path(out_dir: Path, name: str) -> Path:
    return out_dir / FOLDER / f"{name}.json"


def keep_floor(
    path: Path,
    *,
    fingerprint: str,
    run_id: str,
    records: Sequence[Record],
    today: date,
    tier: Tier | None = None,
    keep_days: float,
) -> tuple[FloorFile, list[str]]:
    """Write the A/A run of `records`, and say which cells have too few pairs. Raises OSError, RecordError.

    Cells of an earlier file that were not measured now are kept while they may still be used; then the
    older date is that of the whole file.
    """
    losses, short = aa_losses(records)
    measured = {cell for cell, _ in losses}
    kept: list[FloorEntry] = []
    dated = today
    if path.exists():
        earlier = read_versioned(path, FloorFile, FLOOR_SCHEMA_VERSION)
        if earlier.fingerprint == fingerprint and (today - earlier.measured_on).days <= keep_days:
            kept = [one for one in earlier.entries if one.cell_id not in measured]
            dated = earlier.measured_on if kept else today
    floor = FloorFile(
        fingerprint=fingerprint,
        measured_on=min(dated, today),
        run_id=run_id,
        entries=sorted([*floor_entries(losses, tier), *kept], key=lambda one: (one.cell_id, one.metric)),
    )
    write_floor(path, floor)
    return floor, short


def aa_losses(records: Sequence[Record]) -> tuple[dict[tuple[str, str], Sequence[float]], list[str]]:
    """Losses by cell and metric, and the cells that have too few usable pairs."""
    arms = [
        collect([record for record in records if record.arm == arm], gated=True)
        for arm in ("baseline", "candidate")
    ]
    losses: dict[tuple[str, str], Sequence[float]] = {}
    short: list[str] = []
    for cell_id in sorted(arms[0].keys() | arms[1].keys()):
        both = [arm.get(cell_id) for arm in arms]
        baseline, candidate = both
        name = next(cell.name for cell in both if cell is not None)
        pairs = (
            ()
            if baseline is None or candidate is None
            else pair_launches(baseline, candidate, interleaved=True, tier=None).pairs
        )
        if len(pairs) < FEWEST_PAIRS:
            short.append(f"{name}: {len(pairs)} usable pairs, {FEWEST_PAIRS} are needed")
            continue
        for metric, rule in METRICS.items():
            found = usable_losses(rule, pairs)
            if found:
                losses[cell_id, metric] = found
    return losses, short


def floor_problem(
    path: Path, fingerprint: str, plan: PairPlan, *, today: date, oldest_days: float
) -> str | None:
    """Why the gate will have no noise floor; None when every cell has one. Raises RecordError."""
    floor = read_floor(path, today=today, oldest_days=oldest_days, fingerprint=fingerprint)
    if floor.problem:
        return floor.problem
    known = {cell for cell, _ in floor.noise}
    missing = [cell_id for cell_id in plan.cell_ids if cell_id not in known]
    return f"the A/A run has {len(missing)} of {len(plan.cell_ids)} cells not" if missing else None


def what_is_seen(floor: FloorFile, tier: Tier, names: Mapping[str, str]) -> list[str]:
    """A line per cell of `names` (by id): the smallest slow-down that the tier finds above this noise."""
    lines = []
    for cell_id, name in names.items():
        noises = {
            one.metric: Noise(losses=tuple(one.losses))
            for one in floor.entries
            if one.cell_id == cell_id and len(one.losses) >= FEWEST_PAIRS
        }
        lines.append(in_words(name, tier, noises))
    return [line for line in lines if line is not None]
