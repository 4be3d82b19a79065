"""From what happened on a launch to the Record of a cell. Pure, apart from the clock's label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness.acceptance import Speculation
from harness.accuracy.score import AccuracyScore
from harness.cell import Cell
from harness.checks import why_invalid
from harness.counters import replayed_steps
from harness.effective import without_counts
from harness.equivalence.score import Equivalence
from harness.errors import ExitCode, one_line
from harness.expectation import mismatches, only_uniform_replays
from harness.launch import Ready
from harness.measurement import Measurement
from harness.metrics import summarize
from harness.plan import Launch
from harness.records import CellState, Check, Metric, Record
from harness.request_times import MeasurementError
from paths.api import Counters, Effective

STATE_OF_DEATH = {"crash": CellState.FAILED, "timeout": CellState.TIMEOUT, "oom": CellState.OOM}

EXIT_OF_STATE = {
    CellState.OK: ExitCode.OK,
    CellState.FALLBACK: ExitCode.OK,
    CellState.UNSUPPORTED: ExitCode.INCOMPLETE,
    CellState.SKIPPED: ExitCode.INCOMPLETE,
    CellState.FAILED: ExitCode.INFRASTRUCTURE,
    CellState.TIMEOUT: ExitCode.INFRASTRUCTURE,
    CellState.OOM: ExitCode.INFRASTRUCTURE,
    CellState.PATH_MISMATCH: ExitCode.INVALID,
    CellState.INVALID: ExitCode.INVALID,
}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one cell, before it is tied to its run."""

    state: CellState
    reason: str | None = None
    effective: Effective | None = None
    metrics: dict[str, Metric] | None = None
    checks: dict[str, Check] | None = None
    statuses: dict[str, int] | None = None
    counters: dict[str, Any] | None = None
    accuracy: list[AccuracyScore] = field(default_factory=list)
    equivalence: Equivalence | None = None


@dataclass(frozen=True, kw_only=True)
class Recorder:
    """Knows the run, so that a record needs only the cell and its outcome."""

    run_id: str
    config_dirs: Sequence[Path]

    def record(
        self,
        outcome: Outcome,
        *,
        launch: Launch,
        launch_id: str,
        cell: Cell,
        started_at: str,
        ready: Ready | None,
        log: str | None,
    ) -> Record:
        effective = outcome.effective
        if effective is None and ready is not None:
            effective = without_counts(ready.effective)
        return Record(
            run_id=self.run_id,
            launch_id=launch_id,
            engine_id=launch.engine_id,
            cell_id=cell.cell_id,
            arm_id=cell.arm_id,
            pair=launch.pair,
            slot=launch.slot,
            order=launch.order,
            round=launch.round,
            arm=launch.arm,
            label=cell.label,
            state=outcome.state,
            reason=one_line(outcome.reason) if outcome.reason else None,
            requested=cell.requested,
            chosen=cell.chosen,
            effective=asdict(effective) if effective is not None else None,
            metrics=outcome.metrics or {},
            checks=outcome.checks or {},
            statuses=outcome.statuses or {},
            startup=ready.cost if ready is not None else None,
            counters=outcome.counters,
            accuracy=outcome.accuracy,
            equivalence=outcome.equivalence,
            started_at=started_at,
            command=cell.command(self.config_dirs),
            log=log,
        )


def judge_measurement(measurement: Measurement, cell: Cell, effective: Effective) -> Outcome:
    """The outcome of a load that ran to its end."""
    try:
        metrics, checks, statuses = summarize(measurement, gpus=cell.config.gpus, asked=_asked(cell))
    except MeasurementError as error:
        return Outcome(state=CellState.INVALID, reason=f"contradictory times: {error}", effective=effective)
    checks |= {"slots": slots_check(cell)}
    counters = counter_difference(measurement, cell)
    wrong = mismatches(cell.config.path, cell.engine, effective, measured=True, counted=counters)
    state, reason = _state(measurement, wrong, effective, checks, statuses)
    return Outcome(
        state=state,
        reason=reason,
        effective=effective,
        metrics=metrics if state.has_numbers else None,
        checks=checks,
        statuses=statuses,
        counters=counters,
    )


def _asked(cell: Cell) -> Speculation:
    return Speculation(mtp=cell.engine.mtp, forced_al=cell.engine.mtp_forced_al)


def slots_check(cell: Cell) -> Check:
    """Whether the engine runs at once what the client keeps in flight; else the rest waits in its queue."""
    asked, slots = cell.config.concurrency, cell.engine.max_num_seqs
    if asked is None:
        return Check(ok=None, detail="the load has no limit")
    detail = f"concurrency {asked} of engine.max_num_seqs={slots}"
    if asked <= slots:
        return Check(ok=True, detail=detail)
    return Check(ok=False, detail=f"{detail}: {asked - slots} requests always wait in the engine's queue")


def _state(
    measurement: Measurement,
    wrong: Sequence[str],
    effective: Effective,
    checks: dict[str, Check],
    statuses: dict[str, int],
) -> tuple[CellState, str | None]:
    if wrong:
        return CellState.PATH_MISMATCH, "; ".join(wrong)
    if measurement.aborted:
        return CellState.FAILED, f"load given up: {measurement.aborted}"
    wrong_numbers = why_invalid(checks)
    if wrong_numbers:
        return CellState.INVALID, wrong_numbers
    if not statuses.get("ok"):
        first = next(iter(measurement.requests.errors.values()), "no error was given")
        return CellState.FAILED, f"no request succeeded ({_counted(statuses)}); the first said: {first}"
    if effective.fallbacks:
        return CellState.FALLBACK, "; ".join(effective.fallbacks)
    return CellState.OK, None


def _counted(statuses: dict[str, int]) -> str:
    return ", ".join(f"{number} {status}" for status, number in statuses.items()) or "none was sent"


def counter_difference(measurement: Measurement, cell: Cell) -> dict[str, Any] | None:
    """Counters over the steady window, or over the whole load where there was none, and ratios of them."""
    start = measurement.window_start or measurement.before
    end = measurement.window_end or measurement.after
    if start is None or end is None or end.time_ns < start.time_ns:
        return None
    counted = _difference(start.counters, end.counters)
    return {"seconds": (end.time_ns - start.time_ns) / 1e9, **counted, "ratios": _ratios(counted, cell)}


def _ratios(counted: Mapping[str, Any], cell: Cell) -> dict[str, float | None]:
    """What one step cost in transfers and padding, and how many of the steps that could replay did."""
    steps = sum(counted["steps"].values())
    uniform_only = only_uniform_replays(cell.config.path, cell.engine.device)
    replayed, eligible = replayed_steps(counted, uniform_only=uniform_only)

    def share(part: float, whole: float) -> float | None:
        return part / whole if whole > 0 else None

    return {
        "replay_frac": share(replayed, eligible),
        "copies_per_step": share(counted["host_device_copies"], steps),
        "waits_per_step": share(counted["blocking_waits"], steps),
        "padding_frac": share(counted["tokens_padded"] - counted["tokens_real"], counted["tokens_padded"]),
    }


def _difference(start: Counters, end: Counters) -> dict[str, Any]:
    before, after = asdict(start), asdict(end)
    difference: dict[str, Any] = {}
    for name, value in after.items():
        if isinstance(value, dict):
            difference[name] = {key: total - before[name].get(key, 0) for key, total in value.items()}
        elif name == "memory_high_water":
            difference[name] = value  # a maximum, not a total
        elif isinstance(value, list):
            earlier = [*before[name], *[0] * (len(value) - len(before[name]))]
            difference[name] = [late - early for early, late in zip(earlier, value, strict=True)]
        else:
            known = value is not None and before[name] is not None
            difference[name] = value - before[name] if known else None
    return difference


def judge_partial(measurement: Measurement, cell: Cell, state: CellState, reason: str) -> Outcome:
    """The outcome of a load that was cut short: statuses of what was attempted, no metrics."""
    try:
        _, _, statuses = summarize(measurement, gpus=1)
    except MeasurementError as error:
        return Outcome(state=state, reason=f"{reason} (and contradictory times: {error})")
    counters = counter_difference(measurement, cell)
    return Outcome(state=state, reason=reason, statuses=statuses, counters=counters)
