"""verdict.json: what a CI job may rely on. Typed; its JSON Schema is shipped and documented."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from reports.compare.effects import as_percent
from reports.compare.finding import Comparison, Finding, Gate
from reports.compare.metric_table import METRICS
from reports.compare.words import RunVerdict, Verdict
from reports.gate.outcome import Outcome

VERDICT_SCHEMA_VERSION = "1.0.0"


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)


class ArmSummary(_Model):
    """One arm of the comparison."""

    name: str = Field(description="the path, or the file that was imported")
    runs: list[str] = Field(description="ids of the runs, or names of the files, that its numbers are from")
    revisions: list[str] = Field(description="code revisions of these runs")


class TierSummary(_Model):
    """How much evidence was asked for."""

    name: str
    pairs_min: int
    pairs_max: int
    looks: int = Field(description="how often a decision could be tried")
    alpha_per_look: float = Field(description="one-sided level of each")
    gated: list[str]


class FloorSummary(_Model):
    """The A/A run behind the noise floors."""

    source: str | None = None
    measured_on: str | None = None
    problem: str | None = Field(default=None, description="why there is no floor; null when there is one")


class GateEntry(_Model):
    """One gated verdict. Losses are signed: above zero the candidate is worse, whatever the metric."""

    gate: Gate
    cell_id: str
    cell: str
    metric: str | None = Field(description="null: the cell as a whole, which has no numbers to compare")
    unit: str | None = None
    better: Literal["up", "down"] | None = None
    verdict: Verdict
    reason: str | None = Field(default=None, description="why, unless the numbers say it")
    baseline: float | None = Field(default=None, description="mean over the launches, in the metric's unit")
    candidate: float | None = None
    change_pct: float | None = Field(default=None, description="100 * (candidate / baseline - 1); null: none")
    loss_pct: float | None = Field(
        None, description="mean loss in % of the baseline; of metrics compared by difference in points"
    )
    ci_pct: tuple[float, float] | None = Field(
        None, description="one-sided bounds of loss_pct, at alpha each"
    )
    alpha: float | None = None
    margin_pct: float | None = Field(
        None, description="largest harmless loss: the larger of margin and floors"
    )
    floor_pct: float | None = Field(default=None, description="A/A noise floor; null: none")
    detectable_pct: float | None = Field(default=None, description="loss that is found in 80 % of the cases")
    p_worse: float | None = None
    p_holm: float | None = Field(default=None, description="adjusted over all gated verdicts")
    p_sign_flip: float | None = None
    n_pairs: int = 0
    interleaved: bool = True
    signs: tuple[int, int, int] | None = Field(
        None, description="pairs with the candidate worse, equal, better"
    )
    slot_effect_pct: float | None = Field(default=None, description="cost of running second")
    notes: list[str] = Field(default_factory=list)
    command: str = Field("", description="measures the candidate's cell alone")

    @property
    def loss_unit(self) -> str:
        """Of `loss_pct`, `ci_pct` and `margin_pct`: points for metrics that are compared by difference."""
        rule = METRICS.get(self.metric or "")
        return "points" if rule is not None and rule.scale == "difference" else "%"


class VerdictFile(_Model):
    """The whole file."""

    schema_version: str = VERDICT_SCHEMA_VERSION
    run_id: str
    verdict: RunVerdict
    exit_code: int
    reason: str = Field(description="one sentence")
    examined: int = Field(description="how many gated verdicts stand on numbers")
    baseline: ArmSummary
    candidate: ArmSummary
    interleaved: bool
    tier: TierSummary | None = Field(description="null: nothing is gated")
    floor: FloorSummary
    counts: dict[Verdict, int] = Field(description="gated verdicts by word, zeros included")
    gates: list[GateEntry]
    exclusions: list[str] = Field(description="launches whose numbers were not used, with the cause")
    unexpected_diffs: list[str] = Field(description="what differs between the arms beside the arms")
    notes: list[str]
    artifacts: dict[str, str] = Field(description="files beside this one")


def build_verdict(
    comparison: Comparison,
    outcome: Outcome,
    *,
    run_id: str,
    baseline: ArmSummary,
    candidate: ArmSummary,
    others: Sequence[Finding] = (),
    unexpected_diffs: Sequence[str] = (),
    artifacts: Mapping[str, str] | None = None,
) -> VerdictFile:
    """Everything that the gate says, in the order of cells and metrics."""
    gated = [one for one in (*comparison.findings, *others) if one.gated]
    counted = Counter(one.verdict for one in gated)
    tier = comparison.tier
    return VerdictFile(
        run_id=run_id,
        verdict=outcome.verdict,
        exit_code=int(outcome.exit_code),
        reason=outcome.reason,
        examined=outcome.examined,
        baseline=baseline,
        candidate=candidate,
        interleaved=comparison.interleaved,
        tier=None
        if tier is None
        else TierSummary(
            name=tier.name,
            pairs_min=tier.pairs.min,
            pairs_max=tier.pairs.max,
            looks=len(tier.pairs.looks),
            alpha_per_look=tier.alpha,
            gated=tier.gated,
        ),
        floor=FloorSummary(
            source=comparison.floor_source,
            measured_on=comparison.floor_date,
            problem=comparison.floor_problem,
        ),
        counts={word: counted[word] for word in Verdict},
        gates=[gate_entry(one) for one in gated],
        exclusions=list(comparison.exclusions),
        unexpected_diffs=list(unexpected_diffs),
        notes=list(comparison.notes),
        artifacts=dict(artifacts or {}),
    )


def gate_entry(one: Finding) -> GateEntry:
    """A finding as the file shows it: finite numbers or null, losses in percent."""
    rule, estimate = one.rule, one.estimate
    percent = (lambda loss: None) if rule is None else (lambda loss: as_percent(rule, loss))
    bounds = (percent(estimate.lo), percent(estimate.hi)) if estimate else (None, None)
    return GateEntry(
        gate=one.gate,
        cell_id=one.cell_id,
        cell=one.cell,
        metric=rule.name if rule else None,
        unit=rule.unit if rule else None,
        better=rule.better if rule else None,
        verdict=one.verdict,
        reason=one.reason,
        baseline=_finite(one.baseline),
        candidate=_finite(one.candidate),
        change_pct=_finite(one.change_pct),
        loss_pct=percent(estimate.mean) if estimate else None,
        ci_pct=(bounds[0], bounds[1]) if bounds[0] is not None and bounds[1] is not None else None,
        alpha=estimate.alpha if estimate else None,
        margin_pct=percent(one.margin),
        floor_pct=percent(one.floor),
        detectable_pct=percent(estimate.detectable) if estimate else None,
        p_worse=estimate.p_worse if estimate else None,
        p_holm=one.p_holm,
        p_sign_flip=estimate.sign_flip_worse if estimate else None,
        n_pairs=estimate.n if estimate else min(one.n_baseline, one.n_candidate),
        interleaved=estimate.interleaved if estimate else True,
        signs=estimate.signs if estimate and estimate.interleaved else None,
        slot_effect_pct=percent(estimate.slot_effect) if estimate else None,
        notes=list(one.notes),
        command=one.command,
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def json_schema() -> dict[str, Any]:
    """The JSON Schema of verdict.json."""
    return VerdictFile.model_json_schema()
