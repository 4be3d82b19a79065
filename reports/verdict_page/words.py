"""Findings as text: symbols beside words, changes with intervals, no digit more than they support."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reports.compare.effects import as_percent
from reports.compare.estimate import Estimate
from reports.compare.finding import Finding
from reports.compare.metric_table import METRICS, MetricRule
from reports.compare.words import RunVerdict, Verdict
from reports.gate.summary import SEVERITY, SYMBOL
from reports.tables import ARROWS, DASH, bytes_text, number

RUN_SYMBOL = {
    RunVerdict.PASS: "✓",
    RunVerdict.FAIL: "✗",
    RunVerdict.INCONCLUSIVE: "?",
    RunVerdict.INVALID: "∅",
    RunVerdict.ERROR: "✗",
    RunVerdict.INCOMPLETE: "∅",
    RunVerdict.NOT_GATED: "–",
}
TITLES = {
    "out_tps": "Output throughput",
    "out_tps_per_gpu": "Throughput per GPU",
    "tpot_pooled_ms": "TPOT",
    "ttft_p50_ms": "TTFT p50",
    "ttft_p99_ms": "TTFT p99",
    "al": "Acceptance length",
    "cpu_s_per_token": "CPU per token",
    "startup_cold_s": "Start-up, cold cache",
    "startup_warm_s": "Start-up, warm cache",
    "memory_bytes": "Memory, peak",
}


@dataclass(frozen=True, kw_only=True)
class Effect:
    """The change of one metric from baseline to candidate. `order`: what sorts it, the loss in percent."""

    word: str
    symbol: str
    change: str
    interval: str
    reading: str  # "worse", "better", or nothing where the interval holds 0
    baseline: str
    candidate: str
    pairs: str
    margin: str
    why: str
    order: float | None
    gated: bool


SAMPLES = {"accuracy": "question", "equivalence": "answer"}  # what the verdicts of a gate count
MORE_TITLES = {"tpot_mean_ms": "TPOT mean", "ttft_mean_ms": "TTFT mean", "step_ms": "Verification"}


def title(rule: MetricRule) -> str:
    return TITLES.get(rule.name) or MORE_TITLES.get(rule.name, rule.name)


def arrow(rule: MetricRule) -> str:
    return ARROWS[rule.better]


def worst_word(findings: Iterable[Finding]) -> Verdict | None:
    """The most serious verdict; None without any."""
    return min((one.verdict for one in findings), key=SEVERITY.index, default=None)


def effect(one: Finding) -> Effect:
    """A finding as the page shows it."""
    span = change_interval(one)
    return Effect(
        word=str(one.verdict),
        symbol=SYMBOL[one.verdict],
        change=_change(one, span),
        interval=interval_text(span),
        reading=_reading(one),
        baseline=value_text(one.baseline, one.rule),
        candidate=value_text(one.candidate, one.rule),
        pairs=_pairs(one),
        margin=_margin(one),
        why="; ".join([*([one.reason] if one.reason else []), *one.notes]),
        order=loss_percent(one),
        gated=one.gated,
    )


def change_interval(one: Finding) -> tuple[float, float] | None:
    """Bounds of the change in % (points for differences), from low to high; None without an estimate."""
    if one.estimate is None or one.rule is None:
        return None
    edges = sorted(as_change(one.rule, loss) for loss in (one.estimate.lo, one.estimate.hi))
    return edges[0], edges[1]


def as_change(rule: MetricRule, loss: float) -> float:
    """100 * (candidate / baseline - 1) that a loss stands for; points for differences."""
    signed = rule.worse_sign * loss
    if rule.scale == "difference":
        return 100.0 * signed
    return 100.0 * math.expm1(min(signed, 700.0))  # beyond, e^x is no float


def loss_percent(one: Finding) -> float | None:
    """Above zero is worse, whatever the metric; None where the change is undefined."""
    if one.rule is None:
        return None
    if one.estimate is not None:
        return as_percent(one.rule, one.estimate.mean)
    change = _plain_change(one)
    return None if change is None else one.rule.worse_sign * change


def _plain_change(one: Finding) -> float | None:
    if one.rule is not None and one.rule.scale == "difference":
        if one.baseline is None or one.candidate is None:
            return None
        return _finite(100.0 * (one.candidate - one.baseline))
    return _finite(one.change_pct)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _change(one: Finding, span: tuple[float, float] | None) -> str:
    change = _plain_change(one)
    if change is None or one.rule is None:
        return DASH
    return f"{signed(change, decimals(span))} {unit(one.rule)}"


def unit(rule: MetricRule) -> str:
    return "pt" if rule.scale == "difference" else "%"


def decimals(span: Sequence[float] | None) -> int:
    """As many as the width of the interval supports, 2 where there is none."""
    if span is None:
        return 2
    half = (span[1] - span[0]) / 2
    return 0 if half >= 10 else 1 if half >= 0.5 else 2


def signed(value: float, places: int) -> str:
    """With its sign, and no negative zero."""
    text = f"{value:+,.{places}f}"
    return text.lstrip("+-") if float(text.replace(",", "")) == 0 else text.replace("-", "−")


def interval_text(span: tuple[float, float] | None) -> str:
    if span is None:
        return ""
    places = decimals(span)
    return f"[{signed(span[0], places)}, {signed(span[1], places)}]"


def _reading(one: Finding) -> str:
    found = one.estimate
    if found is None:
        return ""
    return "worse" if found.lo > 0 else "better" if found.hi < 0 else ""


def value_text(value: float | None, rule: MetricRule | None) -> str:
    if value is None or rule is None or not math.isfinite(value):
        return DASH
    return bytes_text(value) if rule.unit == "bytes" else f"{number(value)} {rule.unit}"


def _pairs(one: Finding) -> str:
    if one.estimate is not None and one.estimate.interleaved:
        return counted(one.estimate.n, SAMPLES.get(one.gate, "pair"))
    if one.n_baseline or one.n_candidate:
        return f"{one.n_baseline} and {one.n_candidate} launches"
    return ""


def counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _margin(one: Finding) -> str:
    if one.margin is None or one.rule is None:
        return ""
    if not math.isfinite(one.margin):
        return "any"
    return f"{number(as_percent(one.rule, one.margin) or 0.0)} {unit(one.rule)}"


def shown_metrics(findings: Iterable[Finding], gated: Sequence[str], most: int = 6) -> list[MetricRule]:
    """Columns of the decision matrix: everything gated, then the usual ones while there is room."""
    present = {one.rule.name for one in findings if one.rule is not None}
    first = [name for name in METRICS if name in gated and name in present]
    usual = [name for name in TITLES if name in present and name not in first]
    return [METRICS[name] for name in [*first, *usual[: max(0, most - len(first))]]]


def estimates(findings: Iterable[Finding]) -> list[tuple[Finding, Estimate]]:
    """The findings that have one."""
    return [(one, one.estimate) for one in findings if one.estimate is not None]
