"""The on-disk schema of a run: written atomically, never overwritten, read back without guessing.

    results/<run id>/run.json          RunInfo: plan, command, environment
    results/<run id>/records.jsonl     one Record per cell and launch, one line each
    results/<run id>/requests.parquet  one row per request (columns: `REQUEST_COLUMNS`)

Missing is None with a reason, never 0 and never NaN.
"""

from __future__ import annotations

import errno
import json
import os
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from harness.accuracy.score import AccuracyScore
from harness.atomic import written_atomically
from harness.comparison_info import ComparisonInfo
from harness.equivalence.score import Equivalence
from harness.experiment import Experiment
from harness.percentiles import METHOD

SCHEMA_VERSION = "1.4.0"
METRIC_DEF_VERSION = "1"
WORKLOAD_VERSION = "2"


class RecordError(Exception):
    """A run folder that cannot be read; the message names file and line."""


class CellState(StrEnum):
    OK = "OK"
    FALLBACK = "FALLBACK"
    UNSUPPORTED = "UNSUPPORTED"
    SKIPPED = "SKIPPED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    OOM = "OOM"
    PATH_MISMATCH = "PATH_MISMATCH"
    INVALID = "INVALID"

    @property
    def has_numbers(self) -> bool:
        return self in (CellState.OK, CellState.FALLBACK)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Metric(_Model):
    """One number with what is needed to read it. `value` is None exactly when `reason` says why."""

    value: float | None
    unit: str
    better: Literal["up", "down", "none"]
    n: int  # samples behind the value
    excluded: int = 0  # samples that could not have this metric (one-token answers have no TPOT)
    reason: str | None = None
    ci95: tuple[float, float] | None = None  # interval of 95 %, where one is computed

    @model_validator(mode="after")
    def _value_or_reason(self) -> Metric:
        if (self.value is None) == (self.reason is None):
            raise ValueError("a metric has either a value or a reason for having none")
        return self


class Check(_Model):
    """One validity check of a measurement. `ok` None: could not be judged, `detail` says why."""

    ok: bool | None
    detail: str


class PathChoice(_Model):
    """Which path `+path=auto` took, and the sentence why."""

    requested: str
    chosen: str
    reason: str
    warnings: list[str] = Field(default_factory=list)


class Record(_Model):
    """One cell on one launch."""

    schema_version: str = SCHEMA_VERSION
    metric_def_version: str = METRIC_DEF_VERSION
    workload_version: str = WORKLOAD_VERSION
    run_id: str
    launch_id: str
    engine_id: str  # identity of the EngineConfig
    cell_id: str  # hash of what was requested, without the path
    arm_id: str  # hash of path, code revision and settings
    pair: int
    slot: int
    order: int  # position in the run's execution order
    round: int | None = None  # of an experiment, or the pair of a comparison, from 1
    arm: Literal["baseline", "candidate"] | None = None  # of a comparison
    label: str  # short human name of the cell
    state: CellState
    reason: str | None = None
    requested: dict[str, Any]  # path, model, checkpoint, dtypes, gpus, workload, load, seed, threads …
    chosen: PathChoice | None = None  # None: the path was named
    effective: dict[str, Any] | None = None  # paths.api.Effective as a dict
    metrics: dict[str, Metric] = Field(default_factory=dict)
    checks: dict[str, Check] = Field(default_factory=dict)
    statuses: dict[str, int] = Field(default_factory=dict)  # request status → count, of all attempted
    startup: dict[str, Any] | None = None  # harness.launch.Ready.cost
    # paths.api.Counters as a dict, difference over the steady window, or the load without one; `seconds`, and
    # `ratios`: replay_frac, copies_per_step, waits_per_step, padding_frac
    counters: dict[str, Any] | None = None
    # of the tasks that were scored after this cell's load; the rows are in accuracy.parquet
    accuracy: list[AccuracyScore] = Field(default_factory=list)
    equivalence: Equivalence | None = None  # of the last cell of a launch, where it was asked for
    started_at: str  # wall clock, ISO 8601 with zone; a label, never used in arithmetic
    command: str  # reproduces this cell alone
    log: str | None = None  # path relative to the run folder

    @model_validator(mode="after")
    def _reason_unless_ok(self) -> Record:
        if self.state is not CellState.OK and not self.reason:
            raise ValueError(f"state {self.state} needs a reason")
        if not self.state.has_numbers and self.metrics:
            raise ValueError(f"state {self.state} must not carry metrics")
        return self


def flagged(record: Record) -> list[str]:
    """Names of the checks that failed."""
    return [name for name, check in record.checks.items() if check.ok is False]


class RunInfo(_Model):
    """What a whole run is: written at its start, rewritten once when it ends."""

    schema_version: str = SCHEMA_VERSION
    run_id: str
    command: str
    started_at: str
    resumed_at: list[str] = Field(default_factory=list)  # when it went on after an interruption
    finished_at: str | None = None
    exit_code: int | None = None
    harness_version: str
    environment: dict[str, Any]
    percentile_method: str = METHOD  # of every percentile in the records
    experiment: Experiment | None = None  # what the launches of the plan are rounds of
    comparison: ComparisonInfo | None = None  # what the launches of the plan are the arms of
    plan: list[dict[str, Any]]  # one entry per launch: engine_id, arm, cells in order


# requests.parquet; times are nanoseconds of perf_counter relative to the launch's first send; drafts are null
# where an engine tells of none
REQUEST_COLUMNS = (
    "run_id", "launch_id", "cell_id", "arm_id", "phase", "request_id", "prompt_hash", "prompt_tokens",
    "requested_tokens", "output_tokens", "first_event_tokens", "events", "scheduled_ns", "sent_ns",
    "first_ns", "last_ns", "ttft_ms", "tpot_ms", "e2e_ms", "status", "finish_reason", "error",
    "verifications", "drafted", "accepted",
)  # fmt: skip


def write_text_atomically(path: Path, text: str) -> None:
    """Write beside the target and rename, so that a reader sees the old file or the new one."""
    with written_atomically(path) as file:
        file.write(text.encode())


def append_record(path: Path, record: Record) -> None:
    """Append one line in one write and flush it, so that a crash costs at most the line in flight."""
    line = (record.model_dump_json() + "\n").encode()
    with path.open("ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            if file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            os.fsync(file.fileno())
        except OSError:
            file.truncate(size)  # half a line would spoil the next one
            raise


def _refuse_constant(literal: str) -> float:
    raise ValueError(f"{literal} is not JSON; absent values are null with a reason")


def read_records(path: Path) -> tuple[list[Record], list[str]]:
    """Records of a file and warnings. A truncated last line is a warning, anything else malformed an error.

    Raises RecordError naming file and line; also for an unknown schema version and for duplicate rows.
    """
    records: list[Record] = []
    warnings: list[str] = []
    lines = path.read_bytes().split(b"\n")  # bytes: the end may be half a character
    complete = lines[:-1]
    if lines[-1]:
        warnings.append(f"{path.name}: last line is truncated and was left out")
    seen: dict[tuple[str, str], int] = {}
    for number, line in enumerate(complete, start=1):
        where = f"{path}, line {number}"
        record = _read_record(line, where)
        key = (record.launch_id, record.cell_id)
        if key in seen:
            raise RecordError(f"{where}: repeats the cell and launch of line {seen[key]}; remove one of them")
        seen[key] = number
        records.append(record)
    return records, warnings


def _read_record(line: bytes, where: str) -> Record:
    try:
        data = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    except ValueError as error:
        raise RecordError(f"{where}: not valid JSON ({error}); restore the line, or remove it") from error
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != SCHEMA_VERSION:
        raise RecordError(
            f"{where}: schema version {version!r}, known: {SCHEMA_VERSION}; use the version of the harness "
            "that wrote it, or measure again"
        )
    try:
        return Record.model_validate(data)
    except ValidationError as error:
        raise RecordError(f"{where}: {error.errors()[0]['msg']}; restore the line, or remove it") from error
