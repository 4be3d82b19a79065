"""Imported rows → records of a run, so that everything else can read them like measured ones. Pure."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from harness.pairs import ArmName
from harness.records import CellState, Metric, Record
from reports.compare.cells import NOT_A_NUMBER
from reports.compare.metric_table import METRICS
from reports.interchange.imported import Imported, ImportedRow, cell_label


def records_of(
    imported: Imported, *, run_id: str, arm: ArmName, file_name: str, command: str, started_at: str
) -> list[Record]:
    """One record per row of `arm`; rows without an arm belong to every arm that is asked for.

    Rows of the same cell are its launches, in the order of the file. A `path` names the arm, not the cell.
    """
    seen: Counter[str] = Counter()
    records = []
    for row in imported.rows:
        if row.arm not in (None, arm):
            continue
        cell = {key: value for key, value in row.identity.items() if key != "path"}
        path = arm if row.arm is not None else row.identity.get("path") or arm
        cell_id, arm_id = _digest([imported.tool, cell]), _digest([file_name, arm, path])
        pair = seen[cell_id]
        seen[cell_id] += 1
        records.append(
            Record(
                run_id=run_id,
                launch_id=f"{arm}-{pair}",
                engine_id=arm_id,
                cell_id=cell_id,
                arm_id=arm_id,
                pair=pair,
                slot=0 if arm == "baseline" else 1,
                order=2 * pair + (arm == "candidate"),
                label=cell_label(cell),
                state=CellState.OK,
                requested={"path": path, **cell},
                metric_def_version=imported.tool,
                workload_version=imported.tool,
                metrics=_metrics(row),
                started_at=started_at,
                command=command,
            )
        )
    return records


def _metrics(row: ImportedRow) -> dict[str, Metric]:
    """Values that are not finite keep their reason: they make a comparison invalid, not missing."""
    found: dict[str, Metric] = {}
    for name, rule in METRICS.items():
        unit, better = rule.unit, rule.better
        if name in row.values:
            found[name] = Metric(value=row.values[name], unit=unit, better=better, n=row.requests)
        elif name in row.absent:
            found[name] = Metric(value=None, unit=unit, better=better, n=0, reason=row.absent[name])
    return found


def metrics_in(records: Sequence[Record]) -> list[str]:
    """Metrics that any record has a value for, or one that is not a number; in the order of the table."""
    present = {
        name
        for record in records
        for name, metric in record.metrics.items()
        if metric.value is not None or metric.reason == NOT_A_NUMBER
    }
    return [name for name in METRICS if name in present]


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
