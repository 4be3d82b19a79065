"""What differs between the arms: what was asked to, what ran differently for it, what nobody asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.records import Record
from reports.load import NOT_SET, as_word, flatten
from reports.tables import plain, scalar
from reports.verdict_page.inputs import Compared

MOST_VALUES = 4
# counts, and what differs between any two engines
NOT_SETTINGS = ("pid", "kernels", "graph_modes", "draft_modes", "fallbacks", "notes", "graphs")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One setting in both arms."""

    name: str
    baseline: str
    candidate: str


@dataclass(frozen=True, kw_only=True)
class Differences:
    """All that the template needs."""

    requested: list[Line]
    effective: list[Line]
    unexpected: list[str]
    known: bool  # whether both arms have records to compare
    told: bool  # whether the engines of both arms say what they ran


def differences(data: Compared) -> Differences:
    """From the records of cells that are in both arms, or of all where none is."""
    cells = [{record.cell_id for record in arm.records} for arm in data.arms]
    both = cells[0] & cells[1]
    records = [[one for one in arm.records if one.cell_id in both] or list(arm.records) for arm in data.arms]
    return Differences(
        requested=_asked(data, _lines(*(_values(one.requested for one in arm) for arm in records))),
        effective=_lines(*(_values(_settings(one) for one in arm) for arm in records)),
        unexpected=list(data.judgement.verdict.unexpected_diffs),
        known=all(records),
        told=all(any(one.effective for one in arm) for arm in records),
    )


def _asked(data: Compared, seen: Sequence[Line]) -> list[Line]:
    """The difference of the composed configurations where the run has it, then what the records add."""
    info = data.candidate.run.comparison if data.candidate.run else None
    lines = [_composed(text) for text in info.difference] if info else []
    if info and info.baseline.revision != info.candidate.revision:
        lines.append(Line(name="code", baseline=info.baseline.revision, candidate=info.candidate.revision))
    if info and info.baseline.python:
        lines.append(Line(name="interpreter", baseline=info.baseline.python, candidate="the harness's own"))
    names = {line.name for line in lines}
    return [*lines, *(line for line in seen if line.name not in names)]


def _composed(text: str) -> Line:
    """A line of `ComparisonInfo.difference`: `key: baseline → candidate`."""
    name, _, values = text.partition(": ")
    baseline, _, candidate = values.partition(" → ")
    return Line(name=name, baseline=baseline, candidate=candidate)


def _settings(record: Record) -> Mapping[str, Any]:
    return {key: value for key, value in (record.effective or {}).items() if key not in NOT_SETTINGS}


def _values(settings: Any) -> dict[str, dict[Any, str]]:
    """Every value of every setting, in the order in which it appears."""
    found: dict[str, dict[Any, str]] = {}
    for one in settings:
        for name, value in flatten(one).items():
            shown = scalar(value) if isinstance(value, float) else plain(value)
            found.setdefault(name, {}).setdefault(as_word(value), shown)
    return found


def _lines(
    baseline: Mapping[str, Mapping[Any, str]], candidate: Mapping[str, Mapping[Any, str]]
) -> list[Line]:
    names = [*baseline, *(name for name in candidate if name not in baseline)]
    return [
        Line(name=name, baseline=_shown(baseline.get(name)), candidate=_shown(candidate.get(name)))
        for name in names
        if set(baseline.get(name, {})) != set(candidate.get(name, {}))
    ]


def _shown(values: Mapping[Any, str] | None) -> str:
    if not values:
        return NOT_SET
    texts: Sequence[str] = list(values.values())
    more = f" and {len(texts) - MOST_VALUES} more" if len(texts) > MOST_VALUES else ""
    return ", ".join(texts[:MOST_VALUES]) + more
