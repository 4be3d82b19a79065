"""What switching costs apart from speed: start-up, memory, graphs, room for tokens. Medians over launches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeGuard

from reports.compare.finding import Finding
from reports.tables import DASH, bytes_text, number
from reports.verdict_page.inputs import ArmRun, Compared
from reports.verdict_page.words import Effect, effect, signed

JUDGED = ("startup_cold_s", "startup_warm_s", "memory_bytes")
BYTE_WORDS = ("_bytes", "memory_high_water")


@dataclass(frozen=True, kw_only=True)
class CostRow:
    """One cost in both arms."""

    name: str
    baseline: str
    candidate: str
    change: str


@dataclass(frozen=True, kw_only=True)
class SwitchCost:
    """All that the template needs. `judged`: verdicts on costs, by cell."""

    rows: list[CostRow]
    judged: list[tuple[Finding, Effect]]
    launches: tuple[int, int]


def switch_cost(data: Compared) -> SwitchCost:
    """From the start-ups that the records carry; one per launch."""
    arms = [_costs(arm) for arm in data.arms]
    names = dict.fromkeys([*arms[0].values, *arms[1].values])
    findings = data.judgement.comparison.findings
    return SwitchCost(
        rows=[_row(name, arms[0].values.get(name, ()), arms[1].values.get(name, ())) for name in names],
        judged=[
            (one, effect(one))
            for one in findings
            if one.gated and one.rule is not None and one.rule.name in JUDGED
        ],
        launches=(arms[0].launches, arms[1].launches),
    )


@dataclass(frozen=True, kw_only=True)
class _Costs:
    values: Mapping[str, Sequence[float]]
    launches: int


def _costs(arm: ArmRun) -> _Costs:
    """Start-up seconds of a cold and of a warm compile cache are different things and stay apart."""
    startups: dict[str, dict[str, Any]] = {}
    peaks: dict[str, float] = {}
    for record in arm.records:
        if record.startup:
            startups.setdefault(record.launch_id, record.startup)
        peak = (record.counters or {}).get("memory_high_water")
        if _is_number(peak):
            peaks[record.launch_id] = max(peaks.get(record.launch_id, 0.0), float(peak))
    values: dict[str, list[float]] = {}
    for startup in startups.values():
        cache = startup.get("compile_cache")
        for name, value in startup.items():
            if _is_number(value):
                label = f"{name}, {cache} compile cache" if cache and name.endswith("_s") else name
                values.setdefault(label, []).append(float(value))
    if peaks:
        values["memory_high_water"] = list(peaks.values())
    return _Costs(values=values, launches=len(startups))


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _row(name: str, baseline: Sequence[float], candidate: Sequence[float]) -> CostRow:
    change = DASH
    if baseline and candidate:
        b, c = median(baseline), median(candidate)
        if b > 0:
            change = f"{signed(100 * (c / b - 1), 1)} %"
        elif c == b:
            change = "0 %"
    return CostRow(name=name, baseline=_text(name, baseline), candidate=_text(name, candidate), change=change)


def _text(name: str, values: Sequence[float]) -> str:
    if not values:
        return f"{DASH} not reported"
    value = median(values)
    if name.endswith(BYTE_WORDS):
        return bytes_text(value)
    if name.split(",")[0].endswith("_s"):
        return f"{number(value)} s"
    return f"{value:,.0f}" if value == round(value) else number(value)
