"""Run folders → the two arms of a comparison, and what forbids to compare them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.records import SCHEMA_VERSION, Record
from harness.versioned_json import read_json, version_of
from reports.compare.cells import collect
from reports.compare.comparability import other_machine, told_differences
from reports.compare.compare import Arms
from reports.gate.plan_file import ArmSource, ComparisonFile
from reports.gate.verdict import ArmSummary
from reports.load import NO_RUN, load_run


@dataclass(frozen=True, kw_only=True)
class LoadedArm:
    """The records of one arm and what its runs were. `schema`: a version that cannot be read, else None."""

    source: ArmSource
    run_id: str
    records: Sequence[Record] = ()
    environment: dict[str, Any] = field(default_factory=dict)
    schema: str | None = None
    warnings: Sequence[str] = ()

    @property
    def summary(self) -> ArmSummary:
        paths = sorted({str(record.requested.get("path")) for record in self.records})
        revision = self.source.revision or self.environment.get("revision")
        return ArmSummary(
            name=self.source.name or ", ".join(paths) or self.run_id,
            runs=[self.run_id],
            revisions=[str(revision)] if revision else [],
        )


@dataclass(frozen=True, kw_only=True)
class LoadedArms:
    arms: Arms
    baseline: ArmSummary
    candidate: ArmSummary
    unexpected_diffs: Sequence[str]
    warnings: Sequence[str]
    records: tuple[Sequence[Record], Sequence[Record]] = ((), ())  # baseline, candidate
    folders: tuple[Path, ...] = ()


def load_arms(plan: ComparisonFile, folder: Path) -> LoadedArms:
    """Both arms of `plan`, whose folders are relative to `folder`. Raises RecordError."""
    loaded = [_load(source, folder) for source in (plan.baseline, plan.candidate)]
    baseline, candidate = loaded
    same_run = baseline.run_id == candidate.run_id
    refusal = _refusal(baseline, candidate)
    gated = plan.tier is not None
    cells = [collect(arm.records, gated=gated) for arm in loaded] if refusal is None else [{}, {}]
    return LoadedArms(
        arms=Arms(
            baseline=cells[0],
            candidate=cells[1],
            interleaved=same_run and plan.interleaved,
            refusal=refusal,
            required=plan.required,
            dtypes_under_test=plan.dtypes_under_test,
        ),
        baseline=baseline.summary,
        candidate=candidate.summary,
        unexpected_diffs=[] if same_run else told_differences(baseline.environment, candidate.environment),
        warnings=[*dict.fromkeys((*baseline.warnings, *candidate.warnings))],
        records=(baseline.records, candidate.records),
        folders=tuple((folder / source.run_dir).resolve() for source in (plan.baseline, plan.candidate)),
    )


def _refusal(baseline: LoadedArm, candidate: LoadedArm) -> str | None:
    """What can be said without reading a single record."""
    for arm, other in ((baseline, candidate), (candidate, baseline)):
        if arm.schema is not None:
            return f"schema version {arm.schema} against {other.schema or SCHEMA_VERSION}: measure again"
    return other_machine(baseline.environment, candidate.environment)


def _load(source: ArmSource, folder: Path) -> LoadedArm:
    run_dir = (folder / source.run_dir).resolve()
    schema = _unknown_schema(run_dir)
    if schema is not None:
        return LoadedArm(source=source, run_id=run_dir.name, schema=schema)
    data = load_run(run_dir)
    chosen = None if source.arm_ids is None else set(source.arm_ids)
    records = [one for one in data.records if chosen is None or one.arm_id in chosen]
    return LoadedArm(
        source=source,
        run_id=data.run.run_id,
        records=records,
        environment=data.run.environment,
        warnings=data.warnings,
    )


def _unknown_schema(run_dir: Path) -> str | None:
    """A schema version of run.json that this code cannot read; None when it can. Raises RecordError."""
    version = version_of(read_json(run_dir / "run.json", hint=NO_RUN))
    return None if version == SCHEMA_VERSION else str(version)
