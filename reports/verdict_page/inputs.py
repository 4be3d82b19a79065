"""What the page is made from: a judgement, and the runs whose records it stands on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.records import Record, RecordError, RunInfo
from reports.gate.plan_file import ArmSource
from reports.gate.run_gate import Judgement
from reports.load import RunData, load_run


@dataclass(frozen=True, kw_only=True)
class ArmRun:
    """One arm: its run and its records in execution order. `problem`: why they could not be read."""

    name: str
    folder: Path
    run: RunInfo | None = None
    records: Sequence[Record] = ()
    all_records: Sequence[Record] = ()  # of the run, those of other arms too
    warnings: Sequence[str] = ()
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Everything that the page shows."""

    folder: Path
    judgement: Judgement
    baseline: ArmRun
    candidate: ArmRun

    @property
    def arms(self) -> tuple[ArmRun, ArmRun]:
        return self.baseline, self.candidate


def load_compared(folder: Path, judgement: Judgement) -> Compared:
    """A judged folder with the records of both arms, for what the findings do not carry."""
    plan, verdict = judgement.plan, judgement.verdict
    return Compared(
        folder=folder,
        judgement=judgement,
        baseline=_load(plan.baseline, folder, verdict.baseline.name),
        candidate=_load(plan.candidate, folder, verdict.candidate.name),
    )


def _load(source: ArmSource, folder: Path, name: str) -> ArmRun:
    run_dir = (folder / source.run_dir).resolve()
    try:
        data = load_run(run_dir)
    except (
        RecordError
    ) as error:  # the verdict says NOT_COMPARABLE; the page says why there is nothing to show
        return ArmRun(name=name, folder=run_dir, problem=str(error))
    chosen = None if source.arm_ids is None else set(source.arm_ids)
    return ArmRun(
        name=name,
        folder=run_dir,
        run=data.run,
        records=[one for one in data.records if chosen is None or one.arm_id in chosen],
        all_records=data.records,
        warnings=data.warnings,
    )


def whole_run(arm: ArmRun) -> RunData:
    """The run that an arm is part of, with every record."""
    assert arm.run is not None
    return RunData(run_dir=arm.folder, run=arm.run, records=list(arm.all_records))
