"""May these two arms be compared at all? Decided before any number is looked at. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from reports.compare.cells import ArmCell

MACHINE = ("cpu", "cores", "gpu")  # must match; the rest of the fingerprint is told
TOLD = ("host", "kernel", "python", "governor", "boot_id")


def other_machine(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> str | None:
    """What of the hardware differs between two environments; None when it is the same."""
    wrong = [
        f"{name} {baseline.get(name)} against {candidate.get(name)}"
        for name in MACHINE
        if baseline.get(name) != candidate.get(name)
    ]
    return f"other machine: {'; '.join(wrong)}" if wrong else None


def told_differences(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> list[str]:
    """Differences of two environments that do not forbid a comparison, but may explain a number."""
    ones, others = baseline.get("packages") or {}, candidate.get("packages") or {}
    lines = [
        f"{name}: {baseline.get(name)} → {candidate.get(name)}"
        for name in TOLD
        if baseline.get(name) != candidate.get(name)
    ]
    return lines + [
        f"{name}: {ones.get(name)} → {others.get(name)}"
        for name in sorted(ones.keys() | others.keys())
        if ones.get(name) != others.get(name)
    ]


def why_not_comparable(
    baseline: ArmCell, candidate: ArmCell, *, dtypes_under_test: Collection[str] = ()
) -> str | None:
    """Versions and effective dtypes must agree, but for dtypes that are the difference under test."""
    allowed = {f"effective {name}" for name in dtypes_under_test}
    wrong = [
        f"{name} {baseline.identity[name]} against {candidate.identity[name]}"
        for name in sorted(baseline.identity.keys() & candidate.identity.keys() - allowed)
        if baseline.identity[name] != candidate.identity[name]
    ]
    return "; ".join(wrong) or None
