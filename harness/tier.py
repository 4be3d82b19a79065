"""conf/tier: how much evidence a decision needs. Typed and validated. Pure, but for reading its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from harness.overrides import nearest
from paths.api import UserError

ALPHA = 0.05  # of a one-sided statement about one cell and metric, over all looks together
GROUP = "tier"
Margin = Annotated[float, Field(ge=0, lt=1)]  # a fraction: 0.02 is 2 %


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Pairs(_Section):
    """Pairs of launches: `min` at the first look, `step` more for each further one, up to `max`."""

    min: int = Field(ge=1, le=64, description="an integer from 1 to 64")
    max: int = Field(ge=1, le=64, description="an integer from pairs.min to 64")
    step: int = Field(2, ge=1, description="an integer from 1")

    @model_validator(mode="after")
    def _ordered(self) -> Pairs:
        if self.max < self.min:
            raise ValueError(f"pairs.max={self.max} is below pairs.min={self.min}")
        return self

    @property
    def looks(self) -> list[int]:
        """Numbers of pairs at which a decision is tried."""
        return sorted({*range(self.min, self.max, self.step), self.max})


class Tier(_Section):
    """What `tier=NAME` means."""

    name: str = Field(min_length=1, description="a name")
    pairs: Pairs = Field(description="a group with min, max, step")
    gated: list[str] = Field(description="a list of metrics of the metric table")
    margins: dict[str, Margin] = Field(
        default_factory=dict,
        description="metric: a fraction from 0 below 1, the largest harmless loss; 0.02 is 2 %",
    )
    inconclusive: Literal["warn", "block"] = Field("block", description="warn, block")
    floor_days: float = Field(14, gt=0, description="days above 0: the oldest A/A run that may be used")

    @property
    def alpha(self) -> float:
        """Of each look: all looks together must not raise the rate of false alarms."""
        return ALPHA / len(self.pairs.looks)


# for numbers that no plan of pairs was made for, such as imported ones; whoever uses it says what is gated
SINGLE_RUN = Tier(
    name="single_run", pairs=Pairs(min=2, max=2, step=1), gated=[], inconclusive="warn", floor_days=14
)


def validate_tier(data: Mapping[str, Any], known_metrics: Sequence[str]) -> Tier:
    """A composed tier. Raises UserError naming key, value and what is allowed."""
    try:
        tier = Tier.model_validate({key: value for key, value in data.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join([GROUP, *(str(part) for part in first["loc"])])
        field = Tier.model_fields.get(str(first["loc"][0])) if first["loc"] else None
        allowed = f"allowed: {field.description}" if field else f"a tier has {', '.join(Tier.model_fields)}"
        raise UserError(f"{place}={first['input']}: {first['msg']}; {allowed}") from error
    if not tier.gated and tier.pairs.max > 1:  # one pair judges no speed, and its tier says so
        raise UserError(
            f"tier.gated=[]: tier {tier.name} would measure up to {tier.pairs.max} pairs and judge no number"
            " of them; name some as in tier.gated=[out_tps], or take tier=smoke, which judges states alone"
        )
    for name in (*tier.gated, *tier.margins):
        if name not in known_metrics:
            raise UserError(f"tier {tier.name}: unknown metric {name}{nearest(name, known_metrics)}")
    return tier


def read_tier(name: str, folders: Sequence[Path], known_metrics: Sequence[str]) -> Tier:
    """The tier NAME of the last of `folders` (each with a folder tier/) that has it. Raises UserError."""
    files = {file.stem: file for folder in folders for file in sorted(folder.glob(f"{GROUP}/*.yaml"))}
    if name not in files:
        known = sorted(files)
        raise UserError(
            f"tier={name}: unknown; known: {', '.join(known)}{nearest(name, known)}"
            f" Add your own as DIR/tier/{name}.yaml with --config-dir DIR."
        )
    try:
        data = yaml.safe_load(files[name].read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise UserError(f"tier={name}: {files[name]} cannot be read ({error})") from error
    if not isinstance(data, dict):
        raise UserError(f"tier={name}: {files[name]} must hold a mapping")
    return validate_tier(data, known_metrics)
