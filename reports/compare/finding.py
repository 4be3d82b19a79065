"""What a comparison found: one verdict per cell and metric, with all that it stands on. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from harness.errors import ExitCode
from harness.tier import Tier
from reports.compare.cells import ArmCell
from reports.compare.estimate import Estimate
from reports.compare.metric_table import MetricRule
from reports.compare.words import EXIT_OF_VERDICT, Verdict

Gate = Literal["measurement", "performance", "acceptance", "accuracy", "equivalence"]
CORRECTNESS = ("acceptance", "accuracy", "equivalence")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One verdict. `rule` None: of the whole cell, which has no numbers to compare.

    `margin`, `floor` and the estimate are on the scale of losses; `baseline` and `candidate` are the means
    over the launches in the metric's unit, `change_pct` their change.
    """

    gate: Gate
    cell_id: str
    cell: str
    verdict: Verdict
    gated: bool
    reason: str | None = None
    rule: MetricRule | None = None
    baseline: float | None = None
    candidate: float | None = None
    n_baseline: int = 0  # launches with a value
    n_candidate: int = 0
    change_pct: float | None = None
    estimate: Estimate | None = None
    margin: float | None = None  # the effective one
    floor: float | None = None  # of the noise, where an A/A run may be used
    p_holm: float | None = None
    infrastructure: bool = False  # MISSING because an engine failed
    notes: tuple[str, ...] = ()
    command: str = ""  # measures the candidate's cell alone

    @property
    def exit_code(self) -> ExitCode:
        """What this finding asks for; OK for one that is not gated."""
        if not self.gated:
            return ExitCode.OK
        if self.verdict is Verdict.FAIL and self.gate in CORRECTNESS:
            return ExitCode.CORRECTNESS
        if self.verdict is Verdict.MISSING and self.infrastructure:
            return ExitCode.INFRASTRUCTURE
        return EXIT_OF_VERDICT[self.verdict]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All findings, ordered by cell and metric, and what holds for the whole."""

    findings: tuple[Finding, ...]
    tier: Tier | None
    interleaved: bool
    baseline: dict[str, ArmCell] = field(default_factory=dict)
    candidate: dict[str, ArmCell] = field(default_factory=dict)
    exclusions: tuple[str, ...] = ()  # launches whose numbers were not used, with the cause
    notes: tuple[str, ...] = ()
    floor_source: str | None = None
    floor_date: str | None = None
    floor_problem: str | None = None

    def undecided(self) -> list[str]:
        """Cells, by id, that further pairs could decide."""
        most = self.tier.pairs.max if self.tier else 0
        return sorted(
            {
                one.cell_id
                for one in self.findings
                if one.gated
                and one.verdict is Verdict.INCONCLUSIVE
                and one.estimate is not None
                and one.estimate.n < most
            }
        )
