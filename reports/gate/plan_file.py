"""comparison.json: what is compared with what, and how strictly; written before anything is judged."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from harness.errors import ExitCode
from harness.records import write_text_atomically
from harness.tier import Tier
from harness.versioned_json import read_versioned
from reports.compare.detectable import detectable
from reports.compare.floor import FEWEST_PAIRS, NO_FLOOR, Noise, NoiseFloor
from reports.compare.metric_table import METRICS

COMPARISON = "comparison.json"
COMPARISON_SCHEMA_VERSION = "1.1.0"
FLOOR_SCHEMA_VERSION = "1.0.0"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class ArmSource(_Model):
    """Where one arm's records are."""

    run_dir: str = Field(description="a run folder, absolute or relative to the folder of this file")
    arm_ids: list[str] | None = Field(default=None, description="its arms; null: all records of the run")
    name: str | None = Field(default=None, description="what to call it; null: its paths")
    revision: str | None = Field(default=None, description="of its code; null: that of its run")


class FoundWrong(_Model):
    """What the run itself found wrong, whatever the numbers say."""

    code: ExitCode = Field(description="that it asks for")
    why: str


class ComparisonFile(_Model):
    """The whole file: with the folders that it names, enough to judge again offline."""

    schema_version: str = COMPARISON_SCHEMA_VERSION
    baseline: ArmSource
    candidate: ArmSource
    interleaved: bool = Field(default=True, description="both arms ran as pairs of launches of one run")
    tier: Tier | None = None
    floor: str | None = Field(default=None, description="file of an A/A run, like run_dir")
    fingerprint: str | None = Field(
        default=None, description="of machine, software and baseline: the A/A run must have the same"
    )
    required: dict[str, str] = Field(default_factory=dict, description="planned cells: id, name")
    dtypes_under_test: list[str] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list, description="what was noticed when the numbers were read")
    found_wrong: list[FoundWrong] = Field(
        default_factory=list, description="by the run, written when it ends: a crash, a failed check"
    )
    judged_on: date = Field(description="the day that the age of the A/A run is counted to")


class FloorEntry(_Model):
    cell_id: str
    metric: str
    losses: list[float] = Field(description="signed losses of the A/A pairs, on the scale of losses")
    tier: str | None = Field(default=None, description="that the next two are for")
    pairs: int | None = Field(default=None, description="of a comparison at that tier, at most")
    detectable_pct: float | None = Field(
        default=None, description="loss that such a comparison finds (FAIL) in 80 % of the cases"
    )


class FloorFile(_Model):
    """results/aa/<fingerprint>.json: an A/A run."""

    schema_version: str = FLOOR_SCHEMA_VERSION
    fingerprint: str
    measured_on: date
    run_id: str
    entries: list[FloorEntry]


def write_plan(folder: Path, plan: ComparisonFile) -> None:
    write_text_atomically(folder / COMPARISON, plan.model_dump_json(indent=2) + "\n")


def read_plan(folder: Path) -> ComparisonFile:
    """Raises RecordError naming the file."""
    hint = "; a run without baseline= is compared by baseline_run=DIR candidate_run=DIR"
    return read_versioned(folder / COMPARISON, ComparisonFile, COMPARISON_SCHEMA_VERSION, hint=hint)


def write_floor(path: Path, floor: FloorFile) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(path, floor.model_dump_json(indent=2) + "\n")


def read_floor(path: Path | None, *, today: date, oldest_days: float, fingerprint: str | None) -> NoiseFloor:
    """The noise floors of an A/A run, or why there are none. Raises RecordError if it is malformed.

    `fingerprint`: of the comparison; one that is not known is not that of the A/A run.
    """
    if path is None or not path.exists():
        return NO_FLOOR
    content = read_versioned(path, FloorFile, FLOOR_SCHEMA_VERSION)
    age = (today - content.measured_on).days
    problem = None
    if age > oldest_days:
        problem = f"the A/A run is {age} days old, allowed are {oldest_days:g}; measure again with cmd=aa"
    elif fingerprint != content.fingerprint:
        problem = "the A/A run is of another machine, software or baseline; measure again with cmd=aa"
    return NoiseFloor(
        noise={(one.cell_id, one.metric): Noise(losses=tuple(one.losses)) for one in content.entries},
        problem=problem,
        source=str(path),
        measured_on=content.measured_on.isoformat(),
    )


def floor_entries(
    losses: dict[tuple[str, str], Sequence[float]], tier: Tier | None = None
) -> list[FloorEntry]:
    """Entries in a stable order; with a tier, what it can see above this noise."""
    return [_entry(cell, metric, values, tier) for (cell, metric), values in sorted(losses.items())]


def _entry(cell_id: str, metric: str, values: Sequence[float], tier: Tier | None) -> FloorEntry:
    entry = FloorEntry(cell_id=cell_id, metric=metric, losses=list(values))
    if tier is None or len(values) < FEWEST_PAIRS:
        return entry
    found = detectable(METRICS[metric], Noise(losses=tuple(values)), tier)
    return entry.model_copy(
        update={"tier": tier.name, "pairs": found.pairs, "detectable_pct": found.loss_pct}
    )
