"""Records of one arm → what each launch gave per cell, and whether its numbers may be used. Pure.

Whether a launch counts is decided here, from states and checks, before any number is looked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.records import CellState, Record, RecordError, flagged
from reports.compare.effects import is_number

# a failed one makes a gated cell INVALID: the numbers are not those of the load that was asked for
GATED_CHECKS = ("success", "window_ok", "little", "client_lag", "achieved_rate", "unique_prompts")
NOT_A_NUMBER = "the value is not a finite number"


@dataclass(frozen=True, kw_only=True)
class LaunchNumbers:
    """One cell on one launch. `cause`: why its numbers are not used; None when they are."""

    launch_id: str
    pair: int
    slot: int
    state: CellState = CellState.OK
    cause: str | None = None
    values: Mapping[str, float] = field(default_factory=dict)  # finite
    absent: Mapping[str, str] = field(default_factory=dict)  # metric → why it has no value
    flags: tuple[str, ...] = ()  # what a reader must know beside the numbers


@dataclass(frozen=True, kw_only=True)
class ArmCell:
    """One cell in one arm: its launches in the order of pairs."""

    cell_id: str
    name: str
    requested: Mapping[str, Any] = field(default_factory=dict)
    identity: Mapping[str, Any] = field(default_factory=dict)  # must be the same in both arms
    command: str = ""
    launches: tuple[LaunchNumbers, ...] = ()

    def metrics(self) -> set[str]:
        """Names of all metrics that any launch has, with or without a value."""
        return {name for one in self.launches for name in (*one.values, *one.absent)}


def collect(records: Sequence[Record], *, gated: bool) -> dict[str, ArmCell]:
    """The cells of one arm by `cell_id`, from records in any order.

    `gated`: failed checks of the load make a launch unusable; else they are only flagged. Raises RecordError
    when the records are of more than one arm.
    """
    by_cell: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda one: (one.pair, one.order, one.launch_id)):
        by_cell.setdefault(record.cell_id, []).append(record)
    return {cell_id: _arm_cell(rows, gated) for cell_id, rows in sorted(by_cell.items())}


def _arm_cell(rows: Sequence[Record], gated: bool) -> ArmCell:
    first = rows[0]
    arms = sorted({row.arm_id for row in rows})
    if len(arms) > 1:
        names = sorted({str(row.requested.get("path")) for row in rows})
        raise RecordError(
            f"cell {cell_name(first)} has records of {len(arms)} arms (paths {', '.join(names)}); compare one"
        )
    return ArmCell(
        cell_id=first.cell_id,
        name=cell_name(first),
        requested=first.requested,
        identity=_identity(rows),
        command=first.command,
        launches=tuple(_numbers(row, gated) for row in rows),
    )


def cell_name(record: Record) -> str:
    """The label without the path, which belongs to the arm."""
    path = str(record.requested.get("path") or "")
    return record.label.removeprefix(f"{path} ") if path else record.label


def _identity(rows: Sequence[Record]) -> dict[str, Any]:
    """What two arms must share to be comparable; several values of one arm are kept as a list."""
    found: dict[str, set[str]] = {}
    for row in rows:
        effective = row.effective or {}
        for name in ("schema_version", "metric_def_version", "workload_version"):
            found.setdefault(name, set()).add(str(getattr(row, name)))
        for name in ("dtype", "kv_dtype", "index_dtype"):
            if effective.get(name) is not None:
                found.setdefault(f"effective {name}", set()).add(str(effective[name]))
    return {name: ", ".join(sorted(values)) for name, values in sorted(found.items())}


def _numbers(record: Record, gated: bool) -> LaunchNumbers:
    values: dict[str, float] = {}
    absent: dict[str, str] = {}
    for name, metric in record.metrics.items():
        if metric.value is None:
            absent[name] = metric.reason or "no value"
        elif is_number(metric.value):
            values[name] = metric.value
        else:
            absent[name] = NOT_A_NUMBER
    wrong = [name for name in flagged(record) if name in GATED_CHECKS]
    cause = None if record.state.has_numbers else f"{record.state}: {record.reason}"
    if cause is None and gated and wrong:
        cause = "; ".join(f"check {name}: {record.checks[name].detail}" for name in wrong)
    return LaunchNumbers(
        launch_id=record.launch_id,
        pair=record.pair,
        slot=record.slot,
        state=CellState.INVALID if cause and record.state.has_numbers else record.state,
        cause=cause,
        values=values | (_costs(record) if record.state.has_numbers else {}),
        absent=absent,
        flags=_flags(record, () if cause else tuple(wrong)),
    )


def _costs(record: Record) -> dict[str, float]:
    """What the launch cost: start-up with a cold and with a warm compile cache are two metrics."""
    startup, counters = record.startup or {}, record.counters or {}
    costs: dict[str, float] = {}
    ready, cache = startup.get("ready_s"), startup.get("compile_cache")
    for name, caches in (("startup_cold_s", ("cold", "unused")), ("startup_warm_s", ("warm", "unused"))):
        if ready is not None and is_number(ready) and cache in caches:
            costs[name] = float(ready)
    if is_number(counters.get("memory_high_water")):
        costs["memory_bytes"] = float(counters["memory_high_water"])
    return costs


def _flags(record: Record, checks: Sequence[str]) -> tuple[str, ...]:
    fallback = [f"FALLBACK: {record.reason}"] if record.state is CellState.FALLBACK else []
    return (*fallback, *(f"check {name}: {record.checks[name].detail}" for name in checks))


def natural_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Sorts c2 before c16, the same in every locale."""
    parts = re.split(r"(\d+)", text)
    return tuple((1, int(p), "") if p.isdecimal() and p.isascii() else (0, 0, p) for p in parts)


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Keys in which two requests differ, the path aside, as `key: a → b`."""
    keys = sorted((one.keys() | other.keys()) - {"path"})
    return [
        f"{key}: {_shown(one, key)} → {_shown(other, key)}"
        for key in keys
        if _shown(one, key) != _shown(other, key)
    ]


def _shown(values: Mapping[str, Any], key: str) -> str:
    return json.dumps(values[key], sort_keys=True, default=str) if key in values else "not set"
