"""Read a run folder into what tables and plots need. Nothing is dropped, nothing is guessed.

data = load_run(Path("results/20260101-120000-ab12"))
data.frame    # one row per record × metric; a record without metrics has one row with metric "(none)"
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import ValidationError

from harness.records import SCHEMA_VERSION, Record, RecordError, RunInfo, read_records

NOT_SET = "not set"  # what an absent group key becomes, so that grouping can never lose its rows
NO_METRIC = "(none)"
RECORD_KEYS = ("launch_id", "cell_id", "arm_id", "pair", "slot", "order", "label", "state", "reason")
METRIC_KEYS = ("metric", "value", "unit", "better", "n", "excluded", "metric_reason")


@dataclass(frozen=True, kw_only=True)
class RunData:
    """One run: its description, its records and the same records as a frame."""

    run_dir: Path
    run: RunInfo
    records: list[Record]
    frame: pd.DataFrame  # RECORD_KEYS + requested keys as "req.<key>" + METRIC_KEYS
    requests: pd.DataFrame | None = None  # one row per request; None when the run kept none
    warnings: list[str] = field(default_factory=list)


def load_run(run_dir: Path) -> RunData:
    """Read `run.json`, `records.jsonl` and, if it is there, `requests.parquet`.

    Raises RecordError naming the file for anything malformed, for an unknown schema version and for a record
    that belongs to another run. A run without records is valid: it failed before its first cell.
    """
    run = _read_run(run_dir / "run.json")
    records_path = run_dir / "records.jsonl"
    records: list[Record] = []
    warnings: list[str] = []
    if records_path.exists():
        records, warnings = read_records(records_path)
    for number, record in enumerate(records, start=1):
        if record.run_id != run.run_id:
            raise RecordError(
                f"{records_path}: record {number} belongs to run {record.run_id}, not {run.run_id}"
            )
    records.sort(key=lambda record: record.order)
    requests, request_warnings = _read_requests(run_dir / "requests.parquet")
    return RunData(
        run_dir=run_dir,
        run=run,
        records=records,
        frame=metric_frame(records),
        requests=requests,
        warnings=warnings + request_warnings,
    )


def _read_run(path: Path) -> RunInfo:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror}); is this a run folder?") from error
    try:
        data = json.loads(text)
    except ValueError as error:
        raise RecordError(f"{path}: not valid JSON ({error})") from error
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != SCHEMA_VERSION:
        raise RecordError(f"{path}: schema version {version!r}, known: {SCHEMA_VERSION}")
    try:
        return RunInfo.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        raise RecordError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _read_requests(path: Path) -> tuple[pd.DataFrame | None, list[str]]:
    if not path.exists():
        return None, []
    try:
        return pd.read_parquet(path), []
    except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
        return None, [f"{path.name} is unreadable and was left out ({error})"]


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys, in order; an empty mapping stays as one value."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{name}."))
        else:
            flat[name] = value
    return flat


def metric_frame(records: Sequence[Record]) -> pd.DataFrame:
    """One row per record × metric. Requested keys become columns "req.<dotted key>" as words, never NaN."""
    rows: list[dict[str, Any]] = []
    for record in records:
        base: dict[str, Any] = {key: getattr(record, key) for key in RECORD_KEYS}
        base["state"] = record.state.value
        base["reason"] = record.reason or ""
        base |= {f"req.{key}": as_word(value) for key, value in flatten(record.requested).items()}
        for name, metric in record.metrics.items():
            values = (
                name, metric.value, metric.unit, metric.better, metric.n, metric.excluded,
                metric.reason or "",
            )  # fmt: skip
            rows.append(base | dict(zip(METRIC_KEYS, values, strict=True)))
        if not record.metrics:
            rows.append(base | dict(zip(METRIC_KEYS, (NO_METRIC, None, "", "none", 0, 0, ""), strict=True)))
    requested = sorted({key for row in rows for key in row if key.startswith("req.")})
    frame = pd.DataFrame(rows, columns=[*RECORD_KEYS, *requested, *METRIC_KEYS])
    frame["value"] = frame["value"].astype("float64")
    for key in requested:
        frame[key] = frame[key].astype(object).where(frame[key].notna(), NOT_SET)
    expected = sum(max(1, len(record.metrics)) for record in records)
    if len(frame) != expected:
        raise AssertionError(f"{expected} rows in, {len(frame)} rows out")
    return frame


def as_word(value: Any) -> Any:
    """A group key that is hashable and never missing: None becomes a word, containers become JSON."""
    if value is None or (pd.api.types.is_scalar(value) and pd.isna(value)):
        return NOT_SET
    if isinstance(value, list | dict | tuple):
        return json.dumps(value, sort_keys=True)
    return value


def group_rows(frame: pd.DataFrame, keys: Sequence[str]) -> list[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Groups in order of first appearance. Missing keys become words; every row lands in exactly one group.

    Raises AssertionError when rows would be lost.
    """
    filled = frame.copy()
    for key in keys:
        filled[key] = [as_word(value) for value in filled[key]]
    groups = [
        (key if isinstance(key, tuple) else (key,), rows)
        for key, rows in filled.groupby(list(keys), sort=False, dropna=False)
    ]
    total = sum(len(rows) for _, rows in groups)
    if total != len(frame):
        raise AssertionError(f"grouping by {', '.join(keys)}: {len(frame)} rows in, {total} rows out")
    return groups
