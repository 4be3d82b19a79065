"""What drafts bring: the speed-up of a cell with drafts over the one without, split into terms. Pure.

For cells that differ in mtp alone, with S = TPOT without / TPOT with drafts, AL the acceptance length and E
the tokens that a verification emitted: it costs C = E / S ordinary steps, and K = AL / E is lost behind the
ends of answers. So ln S = ln AL - ln K - ln C: drafts pay while ln AL is larger than what is taken from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from harness.records import Record
from reports.load import as_word

_OWN_KEYS = ("mtp", "mtp_mode", "mtp_forced_al")
_ARM_KEYS = ("path", "options")
_ANY_ARM = "any"


@dataclass(frozen=True, kw_only=True)
class Split:
    """One path, one condition, one mtp: medians over the rounds in which both cells have the numbers."""

    path: str
    off: Record  # one of the cells without drafts, for its label
    on: Record
    log_speedup: float  # ln S
    log_length: float  # ln AL
    log_cut: float  # ln K
    log_throughput: float | None  # ln of the ratio of output throughput, for comparison
    rounds: int

    @property
    def log_cost(self) -> float:
        """ln C, by which ln S falls short of ln AL, apart from what was cut."""
        return self.log_length - self.log_cut - self.log_speedup


@dataclass(frozen=True, kw_only=True)
class Unsplit:
    """A cell with drafts whose speed-up has no value, and why."""

    on: Record
    reason: str


@dataclass(frozen=True, kw_only=True)
class Change:
    """Two paths under one condition and mtp: how much of each term the second has more than the first."""

    first: Split
    second: Split

    @property
    def terms(self) -> tuple[float, float, float, float]:
        """Differences of ln S, ln AL, ln K and ln C."""
        a, b = self.first, self.second
        return (
            b.log_speedup - a.log_speedup,
            b.log_length - a.log_length,
            b.log_cut - a.log_cut,
            b.log_cost - a.log_cost,
        )


def speculative(records: Sequence[Record]) -> list[Record]:
    """The cells that were asked to draft, in the order of the run."""
    return [record for record in records if record.requested.get("mtp")]


def split_speedups(records: Sequence[Record]) -> tuple[list[Split], list[Unsplit]]:
    """Every cell with drafts against the one without, if there is one: of its own arm, else of the other."""
    off: dict[tuple[Any, ...], Record] = {}
    for record in records:
        if not record.requested.get("mtp"):
            for arm in (record.arm, _ANY_ARM):
                off.setdefault((arm, _condition(record), record.round), record)
    groups: dict[Any, list[tuple[Record, Record | None]]] = {}
    for record in speculative(records):
        key = (_condition(record), record.round)
        same = off.get((record.arm, *key)) or off.get((_ANY_ARM, *key))
        groups.setdefault((record.arm, _condition(record), *_own(record)), []).append((record, same))
    splits: list[Split] = []
    without: list[Unsplit] = []
    for pairs in groups.values():
        split = _split(pairs)
        if isinstance(split, Split):
            splits.append(split)
        else:
            without.append(Unsplit(on=pairs[0][0], reason=split))
    return splits, without


def changes(splits: Sequence[Split]) -> list[Change]:
    """Each path against the first one that has the same condition and mtp."""
    first: dict[Any, Split] = {}
    found = []
    for split in splits:
        reference = first.setdefault((_condition(split.on, without=_ARM_KEYS), *_own(split.on)), split)
        if reference is not split:
            found.append(Change(first=reference, second=split))
    return found


def _condition(record: Record, *, without: Sequence[str] = ()) -> Any:
    return as_word({k: v for k, v in record.requested.items() if k not in (*_OWN_KEYS, *without)})


def _own(record: Record) -> tuple[Any, ...]:
    return tuple(record.requested.get(key) for key in _OWN_KEYS)


def _split(pairs: Sequence[tuple[Record, Record | None]]) -> Split | str:
    """Medians over the rounds, or why there is no round with both numbers."""
    good, reasons = [], []
    for on, off in pairs:
        reason = _missing(on, off)
        if reason or off is None:
            reasons.append(reason)
        else:
            good.append((on, off))
    if not good:
        return reasons[0]
    rates = [_log(on, "out_tps") - _log(off, "out_tps") for on, off in good if _both(on, off, "out_tps")]
    on, off = good[0]
    return Split(
        path=str(on.requested.get("path")) + (f" ({on.arm})" if on.arm else ""),
        off=off,
        on=on,
        log_speedup=median(_log(off, "tpot_pooled_ms") - _log(on, "tpot_pooled_ms") for on, off in good),
        log_length=median(_log(on, "al") for on, _ in good),
        log_cut=median(_log(on, "al") - _log(on, "al_emitted") for on, _ in good),
        log_throughput=median(rates) if rates else None,
        rounds=len(good),
    )


def _missing(on: Record, off: Record | None) -> str:
    """Why a pair has no split; empty when it has."""
    if off is None:
        return "the run has no cell with mtp=0 that is otherwise the same"
    for record in (on, off):
        if not record.state.has_numbers:
            return f"mtp={record.requested.get('mtp')} is {record.state.value}: {record.reason}"
    for record, name in ((on, "al"), (on, "al_emitted"), (on, "tpot_pooled_ms"), (off, "tpot_pooled_ms")):
        if _value(record, name) is None:
            found = record.metrics.get(name)
            return f"{name} of mtp={record.requested.get('mtp')}: {found.reason if found else 'not recorded'}"
    return ""


def _value(record: Record, name: str) -> float | None:
    """Above 0, or None."""
    found = record.metrics.get(name)
    return found.value if found is not None and found.value is not None and found.value > 0 else None


def _both(on: Record, off: Record, name: str) -> bool:
    return _value(on, name) is not None and _value(off, name) is not None


def _log(record: Record, name: str) -> float:
    value = _value(record, name)
    assert value is not None
    return math.log(value)
