"""What a file of another tool holds: cells with numbers, of one arm or of two."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.pairs import ArmName
from reports.compare.cells import NOT_A_NUMBER


@dataclass(frozen=True, kw_only=True)
class ImportedRow:
    """One launch of one cell. `arm` None: the file says nothing about arms."""

    identity: Mapping[str, Any]
    values: Mapping[str, float]  # metric of our table → finite number
    absent: Mapping[str, str] = field(default_factory=dict)
    arm: ArmName | None = None
    requests: int = 0  # behind the numbers, 0 where the file does not say


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A whole file. `tool` is part of what its numbers mean: other tools measure other things."""

    tool: str
    rows: Sequence[ImportedRow]

    @property
    def two_arms(self) -> bool:
        return any(row.arm is not None for row in self.rows)


def without_copies(imported: Imported) -> tuple[Imported, list[str]]:
    """The file with every launch once, and a line per cell that had copies.

    Two launches never agree in every number; a line that was copied is no evidence beside the first one.
    """
    kept: dict[str, ImportedRow] = {}
    copies: Counter[str] = Counter()
    for place, row in enumerate(imported.rows):
        said = [row.arm, dict(row.identity), dict(row.values), dict(row.absent), row.requests]
        key = json.dumps(said, sort_keys=True, default=str) if row.values else f"without numbers {place}"
        if key in kept:
            copies[": ".join(filter(None, (row.arm, cell_label(row.identity))))] += 1
        kept.setdefault(key, row)
    lines = [
        f"{cell}: {count} cop{'ies' if count > 1 else 'y'} of a launch left out: same numbers, same launch"
        for cell, count in copies.items()
    ]
    return Imported(tool=imported.tool, rows=[*kept.values()]), lines


def sorted_out(numbers: Mapping[str, float | None]) -> tuple[dict[str, float], dict[str, str]]:
    """Finite values, and why the others have none."""
    values = {name: value for name, value in numbers.items() if value is not None and math.isfinite(value)}
    absent = {
        name: "empty in the file" if value is None else NOT_A_NUMBER
        for name, value in numbers.items()
        if name not in values
    }
    return values, absent


def cell_label(identity: Mapping[str, Any]) -> str:
    """`model key=value … c16`, the same whatever the order of the columns."""
    rest = {key: value for key, value in identity.items() if key not in ("model", "concurrency")}
    words = [str(identity["model"])] if identity.get("model") is not None else []
    words += [f"{key}={rest[key]}" for key in sorted(rest) if rest[key] is not None]
    if identity.get("concurrency") is not None:
        words.append(f"c{identity['concurrency']}")
    # one line, and nothing that a terminal would obey
    label = "".join(character if character.isprintable() else " " for character in " ".join(words))
    return " ".join(label.split()) or "cell"


def scalar(text: str) -> Any:
    """An integer, a number or the text itself; None for an empty one."""
    text = text.strip()
    if not text:
        return None
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if math.isfinite(value):
            return int(value) if value == int(value) else value
    return text
