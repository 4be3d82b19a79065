"""Where the numbers are from and how they were judged: runs, revisions, rules, what was left out, machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from reports.compare.comparability import other_machine
from reports.compare.metric_table import METRICS
from reports.load import NOT_SET, flatten
from reports.tables import bytes_text, duration, number, plain
from reports.verdict_page.inputs import ArmRun, Compared
from reports.verdict_page.words import arrow, unit

MOST_LINES = 200


@dataclass(frozen=True, kw_only=True)
class Source:
    """One arm's runs."""

    role: str
    name: str
    facts: list[tuple[str, str]]
    command: str
    problems: list[str]


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """All that the template needs."""

    sources: list[Source]
    rules: list[tuple[str, str]]
    margins: list[tuple[str, str, str]]  # metric, margin, absolute floor
    exclusions: list[str]
    notes: list[str]
    more: int  # lines of the two that are not shown
    environment: list[tuple[str, str, str]]  # name, baseline, candidate
    same_machine: bool


def provenance(data: Compared) -> Provenance:
    comparison, verdict = data.judgement.comparison, data.judgement.verdict
    gated = comparison.tier.gated if comparison.tier else []
    margins = comparison.tier.margins if comparison.tier else {}
    environments = [arm.run.environment if arm.run else {} for arm in data.arms]
    lines = len(comparison.exclusions) + len(comparison.notes)
    return Provenance(
        sources=[
            _source(role, arm, summary.revisions)
            for role, arm, summary in zip(
                ("baseline", "candidate"), data.arms, (verdict.baseline, verdict.candidate), strict=True
            )
        ],
        rules=_rules(data),
        margins=[_margin(name, margins.get(name)) for name in gated if name in METRICS],
        exclusions=list(comparison.exclusions[:MOST_LINES]),
        notes=list(comparison.notes[:MOST_LINES]),
        more=max(0, lines - len(comparison.exclusions[:MOST_LINES]) - len(comparison.notes[:MOST_LINES])),
        environment=_environment(*environments),
        same_machine=other_machine(*environments) is None,
    )


def _source(role: str, arm: ArmRun, revisions: Sequence[str]) -> Source:
    facts: list[tuple[str, str]] = []
    if arm.run is not None:
        took = duration(arm.run.started_at, arm.run.finished_at)
        facts = [
            ("run", arm.run.run_id),
            ("started", arm.run.started_at + (f", took {took}" if took else "")),
            ("harness", arm.run.harness_version),
            ("records", f"{len(arm.records):,}"),
            *_versions(arm),
        ]
    return Source(
        role=role,
        name=arm.name,
        facts=[*facts, ("code revision", ", ".join(revisions) or "not recorded")],
        command=arm.run.command if arm.run else "",
        problems=[*([arm.problem] if arm.problem else []), *arm.warnings],
    )


def _versions(arm: ArmRun) -> list[tuple[str, str]]:
    found: dict[str, set[str]] = {
        "schema": set(),
        "metric definitions": set(),
        "workload": set(),
        "seed": set(),
    }
    for record in arm.records:
        found["schema"].add(record.schema_version)
        found["metric definitions"].add(record.metric_def_version)
        found["workload"].add(record.workload_version)
        if "seed" in record.requested:
            found["seed"].add(plain(record.requested["seed"]))
    return [(name, ", ".join(sorted(values))) for name, values in found.items() if values]


def _rules(data: Compared) -> list[tuple[str, str]]:
    tier, verdict = data.judgement.comparison.tier, data.judgement.verdict
    if tier is None:
        return [("gate", "none: numbers only")]
    looks = ", ".join(str(one) for one in tier.pairs.looks)
    return [
        ("tier", tier.name),
        ("pairs of launches", f"{tier.pairs.min} to {tier.pairs.max}; looked at {looks} pairs"),
        ("alpha per look", f"{number(tier.alpha)}, one-sided"),
        ("when inconclusive", tier.inconclusive),
        ("judged on", data.judgement.plan.judged_on.isoformat()),
        ("noise floor", verdict.floor.problem or f"{verdict.floor.source}, {verdict.floor.measured_on}"),
        ("oldest A/A run", f"{number(tier.floor_days)} days"),
        ("verdict.json", f"schema {verdict.schema_version}"),
    ]


def _margin(name: str, own: float | None) -> tuple[str, str, str]:
    rule = METRICS[name]
    value = 100 * (rule.margin if own is None else own)
    floor = f"{number(rule.absolute)} {rule.unit}" if rule.absolute else "none"
    return f"{name} {arrow(rule)}", f"{number(value)} {unit(rule)}", floor


def _environment(baseline: dict[str, Any], candidate: dict[str, Any]) -> list[tuple[str, str, str]]:
    ones, others = flatten(baseline), flatten(candidate)
    return [
        (name, _value(name, ones.get(name, NOT_SET)), _value(name, others.get(name, NOT_SET)))
        for name in dict.fromkeys([*ones, *others])
    ]


def _value(name: str, value: Any) -> str:
    if name.endswith("_bytes") and isinstance(value, int | float) and not isinstance(value, bool) and value:
        return bytes_text(value)
    return plain(value)
