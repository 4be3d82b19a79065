"""A plain CSV file: one row per launch of a cell; columns `baseline_…` and `candidate_…` make two arms."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import one_line
from harness.overrides import nearest
from harness.pairs import ArmName
from paths.api import UserError
from reports.compare.metric_table import METRICS
from reports.interchange.aliases import CSV_METRICS, DERIVED, IDENTITY
from reports.interchange.imported import Imported, ImportedRow, scalar, sorted_out

ARMS: tuple[ArmName, ArmName] = ("baseline", "candidate")


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """What each column is: metric of an arm (None: of the only one), or part of the cell's identity."""

    metrics: Mapping[str, tuple[ArmName | None, str]]
    identity: Mapping[str, str]


def read_csv(path: Path) -> Imported:
    """Raises UserError naming file, line and column."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            table = list(csv.reader(file, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"file={path}: cannot be read as CSV ({one_line(error)})") from error
    if len(table) < 2:
        raise UserError(f"file={path}: has no rows; the first line names the columns, each other is a cell")
    header = [name.strip() for name in table[0]]
    columns = _columns(path, header)
    rows: list[ImportedRow] = []
    for number, line in enumerate(table[1:], start=2):
        if not any(field.strip() for field in line):
            continue
        if len(line) != len(header):
            raise UserError(f"file={path}, line {number}: {len(line)} fields, the header has {len(header)}")
        rows += _rows(path, number, dict(zip(header, line, strict=True)), columns)
    return Imported(tool="csv", rows=rows)


def _columns(path: Path, header: Sequence[str]) -> _Columns:
    metrics: dict[str, tuple[ArmName | None, str]] = {}
    identity: dict[str, str] = {}
    for name in header:
        if not name or header.count(name) > 1:
            raise UserError(f"file={path}: column {name!r} has no name, or one that another column has too")
        arm = next((arm for arm in ARMS if name.startswith(f"{arm}_")), None)
        plain = name if arm is None else name.removeprefix(f"{arm}_")
        metric = plain if plain in METRICS else CSV_METRICS.get(plain)
        if metric is not None:
            if (arm, metric) in metrics.values():
                raise UserError(f"file={path}: column {name} is {metric}, which another column is too")
            metrics[name] = (arm, metric)
        elif arm is not None:
            known = [*METRICS, *CSV_METRICS]
            raise UserError(f"file={path}: column {name}: unknown metric {plain}{nearest(plain, known)}")
        elif name not in DERIVED:
            identity[name] = IDENTITY.get(name, name)
    arms = {arm for arm, _ in metrics.values()}
    if not metrics and any(";" in name or "\t" in name for name in header):
        raise UserError(f"file={path}: its columns are not separated by commas; save it as CSV with commas")
    if not metrics:
        raise UserError(f"file={path}: no column is a metric; known: {', '.join(list(CSV_METRICS)[:8])}, …")
    if None in arms and len(arms) > 1:
        raise UserError(f"file={path}: some metrics have an arm (baseline_, candidate_) and some have none")
    return _Columns(metrics=metrics, identity=identity)


def _rows(path: Path, number: int, line: Mapping[str, str], columns: _Columns) -> list[ImportedRow]:
    """One row per arm that the columns have."""
    identity: dict[str, Any] = {ours: scalar(line[name]) for name, ours in columns.identity.items()}
    by_arm: dict[ArmName | None, dict[str, float | None]] = {}
    for name, (arm, metric) in columns.metrics.items():
        by_arm.setdefault(arm, {})[metric] = _number(path, number, name, line[name])
    rows = []
    for arm, numbers in by_arm.items():
        values, absent = sorted_out(numbers)
        rows.append(ImportedRow(identity=identity, values=values, absent=absent, arm=arm))
    return rows


def _number(path: Path, number: int, column: str, text: str) -> float | None:
    text = text.strip()
    if not text:
        return None
    try:
        return float(text)
    except ValueError as error:
        raise UserError(f"file={path}, line {number}, column {column}: {text!r} is not a number") from error
