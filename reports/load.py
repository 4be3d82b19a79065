"""Read a run folder into what tables and plots need. Nothing is dropped, nothing is guessed.

data = load_run(Path("results/20260101-120000-ab12"))
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.records import SCHEMA_VERSION, Record, RecordError, RunInfo, read_records
from harness.versioned_json import read_versioned

NO_RUN = "; is this a run folder?"
NOT_SET = "not set"  # what an absent group key becomes, so that grouping can never lose its rows


@dataclass(frozen=True, kw_only=True)
class RunData:
    """One run: its description, its records in execution order, and what could not be read."""

    run_dir: Path
    run: RunInfo
    records: list[Record]
    warnings: list[str] = field(default_factory=list)


def load_run(run_dir: Path) -> RunData:
    """Read `run.json` and `records.jsonl`.

    Raises RecordError naming the file for anything malformed, for an unknown schema version and for a record
    that belongs to another run. A run without records is valid: it failed before its first cell.
    """
    run = read_versioned(run_dir / "run.json", RunInfo, SCHEMA_VERSION, hint=NO_RUN)
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
    return RunData(run_dir=run_dir, run=run, records=records, warnings=warnings)


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


def as_word(value: Any) -> Any:
    """A group key that is hashable and never missing: None becomes a word, containers become JSON."""
    if value is None:
        return NOT_SET
    if isinstance(value, list | dict | tuple):
        return json.dumps(value, sort_keys=True)
    return value
