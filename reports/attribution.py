"""Where a difference comes from: what each switch of a ladder contributes, as logarithms that add up. Pure.

A ladder has arms 0 … n, neighbours differ in one switch. In round r the contribution of switch i is
ln(m[i + 1, r] / m[i, r]) of output throughput m, or its negative for TPOT: above 0 is faster. Within a round
they add up to ln(m[n, r] / m[0, r]), since each arm but the ends stands once above and once below.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, stdev
from typing import Any

from harness.experiment import Experiment
from harness.records import CellState, Record, flagged
from reports.compare.power import t_quantile
from reports.load import NOT_SET, as_word, flatten
from reports.tables import plain

# metric, its title, and the sign that makes "above 0" mean faster
METRICS = (("out_tps", "output throughput", 1), ("tpot_pooled_ms", "TPOT", -1))
TOTAL = "total"
INTERVAL_ALPHA = 0.05  # beyond each end of an interval
_LOADS = ("concurrency", "request_rate")


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """ln of what one switch does, by round; rounds in which an arm has no value are not in it."""

    switch: str
    before: str  # paths
    after: str
    by_round: Mapping[int, float]
    rounds: int  # how many there should be

    @property
    def n(self) -> int:
        return len(self.by_round)

    @property
    def middle(self) -> float | None:
        """Median over the rounds; None without one."""
        return median(self.by_round.values()) if self.by_round else None

    @property
    def range(self) -> tuple[float, float] | None:
        """Lowest and highest round."""
        values = self.by_round.values()
        return (min(values), max(values)) if values else None

    @property
    def mean(self) -> float | None:
        """Over the rounds; unlike medians, means of switches add up to that of the total."""
        return fmean(self.by_round.values()) if self.by_round else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Student's t interval of the mean, 90 %; None for fewer than two rounds."""
        if self.mean is None or self.n < 2:
            return None
        half = t_quantile(INTERVAL_ALPHA, self.n - 1) * stdev(self.by_round.values()) / math.sqrt(self.n)
        return self.mean - half, self.mean + half

    @property
    def clear(self) -> bool:
        """Several rounds, all on one side of 0."""
        return self.range is not None and self.n > 1 and (self.range[0] > 0 or self.range[1] < 0)

    @property
    def words(self) -> str:
        """How to read it, in a sentence that claims no more than the rounds show."""
        number = f"{self.n} round{'s' if self.n != 1 else ''}"
        if self.middle is None:
            return "no round has a value of both arms"
        if not self.clear:
            return f"not distinguishable from 0 over {number}"
        return f"{'faster' if self.middle > 0 else 'slower'} in all of {number}"


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """One metric of one condition: the switches in order, and from the first arm to the last."""

    metric: str
    title: str
    contributions: list[Contribution]
    total: Contribution

    @property
    def sum_of_medians(self) -> float | None:
        """What the drawn bars add up to; None when one of them is missing."""
        medians = [one.middle for one in self.contributions if one.middle is not None]
        return math.fsum(medians) if len(medians) == len(self.contributions) else None


@dataclass(frozen=True, kw_only=True)
class Gap:
    """An arm without a value in one round, and the switches that lose the round."""

    round: int
    path: str
    reason: str
    touches: list[str]


@dataclass(frozen=True, kw_only=True)
class Condition:
    """What is compared: everything requested but the path."""

    title: str
    ladders: list[Ladder]
    gaps: list[Gap]
    cautions: list[str]  # what numbers that do count were measured under


def attribute(experiment: Experiment, records: Sequence[Record]) -> list[Condition]:
    """One entry per condition that has a record, in the order of the run."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        if record.round is not None:
            groups.setdefault(as_word(_condition(record)), []).append(record)
    titles = _titles([flatten(_condition(group[0])) for group in groups.values()])
    return [
        _attribute(experiment, group, title=title)
        for title, group in zip(titles, groups.values(), strict=True)
    ]


def _condition(record: Record) -> dict[str, Any]:
    return {key: value for key, value in record.requested.items() if key not in ("path", "options")}


def _titles(conditions: Sequence[Mapping[str, Any]]) -> list[str]:
    """The load, and whatever else tells conditions apart."""
    keys = dict.fromkeys(key for one in conditions for key in one)
    varying = [key for key in keys if len({as_word(one.get(key)) for one in conditions}) > 1]

    def title(one: Mapping[str, Any]) -> str:
        loads = [key for key in _LOADS if one.get(key) is not None]
        named = dict.fromkeys([*loads, *varying])
        return ", ".join(f"{key}={plain(one.get(key, NOT_SET))}" for key in named)

    return [title(one) for one in conditions]


def _attribute(experiment: Experiment, records: Sequence[Record], *, title: str) -> Condition:
    arms = {(record.round or 0, plain(record.requested.get("path"))): record for record in records}
    ladders, gaps = [], {}
    for metric, name, sign in METRICS:
        logs: dict[tuple[int, str], float] = {}
        for number in range(1, experiment.rounds + 1):
            for path in experiment.paths:
                value, reason = _value(arms.get((number, path)), metric, name)
                if value is None:
                    gaps[number, path, reason] = _touched(experiment, path)
                else:
                    logs[number, path] = sign * math.log(value)
        ladders.append(_ladder(experiment, logs, metric=metric, title=name))
    return Condition(
        title=title,
        ladders=ladders,
        gaps=[
            Gap(round=number, path=path, reason=reason, touches=touches)
            for (number, path, reason), touches in gaps.items()
        ],
        cautions=_cautions(records),
    )


def _value(record: Record | None, metric: str, name: str) -> tuple[float | None, str]:
    """A metric above 0, or None and the reason."""
    if record is None:
        return None, "no record: the run ended before"
    if not record.state.has_numbers:
        return None, f"{record.state.value}: {record.reason}"
    found = record.metrics.get(metric)
    if found is None or found.value is None:
        return None, f"{name}: {found.reason if found else 'not recorded'}"
    if found.value <= 0:
        return None, f"{name} is {found.value:g}, which has no logarithm"
    return found.value, ""


def _touched(experiment: Experiment, path: str) -> list[str]:
    """Switches on either side of a path, and the total if it is an end."""
    place = experiment.paths.index(path)
    rungs = experiment.ladder[max(place, 1) : place + 2]
    ends = [TOTAL] if place in (0, len(experiment.ladder) - 1) else []
    return [str(rung.switch) for rung in rungs] + ends


def _ladder(
    experiment: Experiment, logs: Mapping[tuple[int, str], float], *, metric: str, title: str
) -> Ladder:
    def between(before: str, after: str, switch: str) -> Contribution:
        both = [n for n in range(1, experiment.rounds + 1) if (n, before) in logs and (n, after) in logs]
        values = {number: logs[number, after] - logs[number, before] for number in both}
        return Contribution(
            switch=switch, before=before, after=after, by_round=values, rounds=experiment.rounds
        )

    return Ladder(
        metric=metric,
        title=title,
        contributions=[
            between(before.path, after.path, str(after.switch))
            for before, after in pairwise(experiment.ladder)
        ],
        total=between(experiment.paths[0], experiment.paths[-1], TOTAL),
    )


def _cautions(records: Sequence[Record]) -> list[str]:
    """Fallbacks and failed checks of the cells that do count, each once with how often."""
    counted = [record for record in records if record.state.has_numbers]
    said: dict[str, int] = {}
    for record in counted:
        if record.state is CellState.FALLBACK:
            text = f"{plain(record.requested.get('path'))} ran with a fallback ({record.reason})"
            said[text] = said.get(text, 0) + 1
        for name in flagged(record):
            said[f"check {name} failed"] = said.get(f"check {name} failed", 0) + 1
    return [f"{text}: {times} of the {len(counted)} cells that count" for text, times in said.items()]
