"""The section of the page on speculative decoding: acceptance per draft, and what the drafts bring."""

from __future__ import annotations

from dataclasses import dataclass

from harness.cell import mtp_words
from harness.records import Metric, Record
from reports.attribution_section import percent
from reports.load import RunData
from reports.speculation import Change, Split, changes, speculative, split_speedups
from reports.tables import DASH, cell_label, interval, number, plain, signed


@dataclass(frozen=True)
class Value:
    """A figure with its interval of 95 %."""

    text: str
    note: str


@dataclass(frozen=True)
class Draft:
    """One position of one cell."""

    position: int  # from 1
    drafted: str  # how often there was such a draft
    unconditional: Value
    conditional: Value


@dataclass(frozen=True)
class Acceptance:
    """One cell with drafts."""

    label: str
    path: str
    mtp: str
    forced: bool
    length: Value
    per_request: Value
    rate: Value
    coverage: Value
    step: Value
    drafts: list[Draft]
    problem: str  # why it has no numbers; empty when it has


@dataclass(frozen=True)
class Terms:
    """One row of a split: logarithms that add up, and how to read them."""

    label: str
    path: str
    mtp: str
    speedup: str
    length: str
    cut: str
    cost: str
    reading: str


@dataclass(frozen=True)
class Section:
    """All that the template needs."""

    cells: list[Acceptance]
    splits: list[Terms]
    changes: list[Terms]
    without: list[str]
    forced: bool


def speculation_section(data: RunData) -> Section | None:
    """None for a run without drafts."""
    records = speculative(data.records)
    if not records:
        return None
    splits, without = split_speedups(data.records)
    return Section(
        cells=[_acceptance(record) for record in records],
        splits=[_split(split) for split in splits],
        changes=[_change(change) for change in changes(splits)],
        without=[
            f"{plain(one.on.requested.get('path'))} {cell_label(one.on)}: {one.reason}" for one in without
        ],
        forced=any(record.requested.get("mtp_forced_al") is not None for record in records),
    )


def _acceptance(record: Record) -> Acceptance:
    metrics = record.metrics
    return Acceptance(
        label=cell_label(record),
        path=plain(record.requested.get("path")),
        mtp=_mtp(record),
        forced=record.requested.get("mtp_forced_al") is not None,
        length=_value(metrics.get("al")),
        per_request=_value(metrics.get("al_req_mean")),
        rate=_value(metrics.get("draft_rate")),
        coverage=_value(metrics.get("spec_coverage")),
        step=_value(metrics.get("step_ms")),
        drafts=[
            Draft(
                position=draft + 1,
                drafted=_drafted(record, draft),
                unconditional=_value(metrics.get(f"u_{draft}")),
                conditional=_value(metrics.get(f"c_{draft}")),
            )
            for draft in range(int(record.requested["mtp"]))
        ],
        problem="" if record.state.has_numbers else f"{record.state.value}: {record.reason}",
    )


def _drafted(record: Record, draft: int) -> str:
    """ "52 of 56": near the end of an answer fewer are drafted."""
    counters = record.counters or {}
    verified, steps = counters.get("verified_at") or [], counters.get("verify_steps")
    return DASH if steps is None or draft >= len(verified) else f"{verified[draft]:,} of {steps:,}"


def _mtp(record: Record) -> str:
    return mtp_words(int(record.requested["mtp"]), record.requested.get("mtp_forced_al"))


def _value(metric: Metric | None) -> Value:
    if metric is None:
        return Value(DASH, "not recorded")
    if metric.value is None:
        return Value(DASH, metric.reason or "")
    unit = f" {metric.unit}" if metric.unit == "ms" else ""
    return Value(number(metric.value) + unit, f"{interval(metric)}n = {metric.n:,}")


def _split(split: Split) -> Terms:
    times = "" if split.log_throughput is None else f"; output throughput {percent(split.log_throughput)}"
    rounds = "" if split.rounds == 1 else f"; median of {split.rounds} rounds"
    return Terms(
        label=cell_label(split.off),
        path=split.path,
        mtp=_mtp(split.on),
        speedup=signed(split.log_speedup),
        length=signed(split.log_length),
        cut=signed(split.log_cut),
        cost=signed(split.log_cost),
        reading=f"{percent(split.log_speedup)} tokens per second and user{times}{rounds}; {_words(split)}",
    )


def _words(split: Split) -> str:
    """Which term decided."""
    if split.log_speedup > 0:
        return "the drafts pay for their verification"
    if split.log_length <= 0:
        return "no draft was accepted, so its verification is all cost"
    return "a verification costs more than its accepted drafts bring"


def _change(change: Change) -> Terms:
    speedup, length, cut, cost = change.terms
    larger = "acceptance" if abs(length) >= abs(cost) else "the cost of a step"
    return Terms(
        label=cell_label(change.second.off),
        path=f"{change.first.path} → {change.second.path}",
        mtp=_mtp(change.second.on),
        speedup=signed(speedup),
        length=signed(length),
        cut=signed(cut),
        cost=signed(cost),
        reading=f"the drafts bring {percent(speedup)} against the first path; mostly {larger}",
    )
