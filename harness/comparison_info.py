"""What run.json says of a comparison: which arms, from which code, and what they differ in."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from harness.tier import Tier


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class ArmInfo(_Model):
    """One arm. The composed configurations of its cells are in cells/*/config.yaml."""

    name: str  # its paths
    revision: str  # of its code
    python: str | None = None  # None: the harness's own interpreter
    code_root: str | None = None  # of an installed baseline; None: the harness's own, or a worktree
    arm_ids: list[str]
    folders: list[str] = Field(default_factory=list)  # of its cells, below cells/


class ComparisonInfo(_Model):
    """`kind` aa: both arms are the baseline."""

    kind: Literal["gate", "aa"]
    baseline: ArmInfo
    candidate: ArmInfo
    baseline_set: dict[str, Any] = Field(default_factory=dict)
    difference: list[str]  # of the composed configurations, as `key: baseline → candidate`
    tier: Tier | None
    most_pairs: int
    fingerprint: str  # of machine, software and baseline: names the A/A run that belongs to it
