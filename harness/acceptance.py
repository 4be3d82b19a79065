"""Speculative decoding: from drafts verified and accepted to the metrics of a cell. Pure.

Over the steady window, with D verifications of at least one draft, d drafts, A accepted, P_i verifications
that accepted draft i (from 0):

    al = 1 + A/D     draft_rate = A/d     u_i = P_i/D     c_i = P_i/P_(i-1), with P_(-1) = D

The token that ends a verification is no draft: it is in `al` and in no rate. Compare rates at equal mtp only.
`al_emitted` leaves out what was cut behind a stop or a length limit; a verification takes TPOT x al_emitted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.intervals import Interval, mean_interval, ratio_interval, share_interval
from harness.measurement import Measurement, Phase, Snapshot
from harness.records import Metric
from harness.request_times import RequestTimes
from harness.statuses import CODE, Status
from harness.verifications import Ints, Verifications, verifications
from harness.window import Window

_POSITIONS = ("accepted_at", "verified_at")
NO_VERIFICATION = "no draft was verified in the window"
NO_COUNTERS = "no engine counters around the window"


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """What a cell asked for."""

    mtp: int
    forced_al: float | None = None


@dataclass(frozen=True, kw_only=True)
class DraftCounts:
    """Differences of the engine's counters; `accepted_at` and `verified_at` are [mtp]."""

    verify_steps: int
    drafted: int
    accepted: int
    accepted_at: tuple[int, ...]
    verified_at: tuple[int, ...]
    truncated: int
    output_tokens: int
    decode_tokens: int

    @property
    def al(self) -> float:
        """Acceptance length; needs verifications."""
        return 1 + self.accepted / self.verify_steps

    @property
    def emitted(self) -> int:
        """Tokens of verifications, without those that were cut."""
        return self.verify_steps + self.accepted - self.truncated


def draft_counts(start: Snapshot, end: Snapshot, mtp: int) -> DraftCounts:
    """Of the time between two snapshots. Positions that an engine never counted are 0."""
    before, after = start.counters, end.counters

    lists = [getattr(counters, name) for counters in (before, after) for name in _POSITIONS]
    length = max(mtp, *map(len, lists))

    def positions(name: str) -> tuple[int, ...]:
        first, last = getattr(before, name), getattr(after, name)
        padded = ([*values, *[0] * (length - len(values))] for values in (first, last))
        return tuple(late - early for early, late in zip(*padded, strict=True))

    return DraftCounts(
        verify_steps=after.verify_steps - before.verify_steps,
        drafted=after.drafted_tokens - before.drafted_tokens,
        accepted=after.accepted_tokens - before.accepted_tokens,
        **{name: positions(name) for name in _POSITIONS},
        truncated=after.truncated_tokens - before.truncated_tokens,
        output_tokens=after.output_tokens - before.output_tokens,
        decode_tokens=after.decode_tokens - before.decode_tokens,
    )


def acceptance_metrics(
    measurement: Measurement,
    times: RequestTimes,
    window: Window | None,
    excuse: str | None,
    *,
    asked: Speculation,
    tpot: Metric,
) -> dict[str, Metric]:
    """Metrics of a cell with drafts; none for one without. `tpot` is its `tpot_pooled_ms`."""
    if not asked.mtp:
        return {}
    start, end = measurement.window_start, measurement.window_end
    if window is None or start is None or end is None:
        return _nothing(asked.mtp, excuse or NO_COUNTERS)
    counts = draft_counts(start, end, asked.mtp)
    if counts.verify_steps < 1 or counts.drafted < 1:
        return _nothing(asked.mtp, NO_VERIFICATION)
    told = verifications(measurement)
    inside = None if told is None else told.of(window.holds(told.time_ns))
    return (
        _lengths(counts, inside)
        | _positions(counts, inside, asked.mtp)
        | _per_request(measurement, times, window, told)
        | {"step_ms": _step(counts, tpot)}
    )


def _metric(value: float, unit: str, n: int, interval: Interval | None = None) -> Metric:
    return Metric(value=value, unit=unit, better="up", n=n, ci95=interval)


def _absent(unit: str, reason: str) -> Metric:
    return Metric(value=None, unit=unit, better="down" if unit == "ms" else "up", n=0, reason=reason)


def _nothing(mtp: int, reason: str) -> dict[str, Metric]:
    tokens = dict.fromkeys(("al", "al_emitted", "al_req_mean", "al_token_weighted"), "tok/step")
    rates = [f"{kind}_{draft}" for draft in range(mtp) for kind in "uc"]
    shares = dict.fromkeys(("draft_rate", "spec_coverage", *rates), "fraction")
    return {name: _absent(unit, reason) for name, unit in {**tokens, **shares, "step_ms": "ms"}.items()}


def _lengths(counts: DraftCounts, told: Verifications | None) -> dict[str, Metric]:
    """Over all verifications of the window, each alike."""
    d, coverage = counts.verify_steps, None
    rate = counts.accepted / counts.drafted
    length_ci = rate_ci = None
    if told is not None:
        accepted, steps = told.per_request(told.accepted), told.per_request(np.ones_like(told.accepted))
        length_ci = ratio_interval(counts.al, accepted, steps)
        rate_ci = share_interval(rate, accepted, told.per_request(told.drafted)) if rate <= 1 else None
    if counts.output_tokens > 0:
        coverage = counts.emitted / counts.output_tokens
    return {
        "al": _metric(counts.al, "tok/step", d, length_ci),
        "al_emitted": _metric(counts.emitted / d, "tok/step", d),
        "draft_rate": _metric(rate, "fraction", counts.drafted, rate_ci),
        "spec_coverage": _absent("fraction", "no token was emitted in the window")
        if coverage is None
        else _metric(coverage, "fraction", counts.output_tokens),
    }


def _positions(counts: DraftCounts, told: Verifications | None, mtp: int) -> dict[str, Metric]:
    """Unconditional and conditional rate of each draft."""
    metrics: dict[str, Metric] = {}
    before, reached = counts.verify_steps, None if told is None else np.ones_like(told.accepted)
    for draft in range(mtp):
        hits = counts.accepted_at[draft]
        accepted = None if told is None else told.accepted_at(draft)
        every = None if told is None else np.ones_like(told.accepted)
        if counts.verified_at[draft] == 0:  # all were near their end, or the token budget was small
            never = _absent("fraction", "no verification had so many drafts")
            metrics |= {f"u_{draft}": never, f"c_{draft}": never}
        else:
            metrics[f"u_{draft}"] = _share(hits, counts.verify_steps, told, accepted, every)
            metrics[f"c_{draft}"] = _share(hits, before, told, accepted, reached)
        before, reached = hits, accepted
    return metrics


def _share(
    hits: int, trials: int, told: Verifications | None, accepted: Ints | None, reached: Ints | None
) -> Metric:
    """hits / trials of the counters, with an interval from the requests' own shares."""
    if trials < 1:
        return _absent("fraction", "no verification accepted the draft before")
    share, interval = hits / trials, None
    if told is not None and accepted is not None and reached is not None and 0 <= share <= 1:
        interval = share_interval(share, told.per_request(accepted), told.per_request(reached))
    return _metric(share, "fraction", trials, interval)


def _per_request(
    measurement: Measurement, times: RequestTimes, window: Window, told: Verifications | None
) -> dict[str, Metric]:
    """Of successful requests that ended in the window: each request alike, and each verification alike."""
    names = ("al_req_mean", "al_token_weighted")
    if told is None:
        return {name: _absent("tok/step", "the engine does not tell of drafts per request") for name in names}
    steps, accepted = told.per_request(np.ones_like(told.accepted)), told.per_request(told.accepted)
    measured = measurement.requests.phase == Phase.MEASURED
    rows = (times.status == CODE[Status.OK]) & measured & window.holds(times.last_ns) & (steps > 0)
    steps, accepted = steps[rows], accepted[rows]
    if not len(steps):
        return {
            name: _absent("tok/step", "no request with a verification ended in the window") for name in names
        }
    lengths = 1 + accepted / steps
    weighted = float((steps + accepted).sum() / steps.sum())
    return {
        "al_req_mean": _metric(float(lengths.mean()), "tok/step", len(steps), mean_interval(lengths)),
        "al_token_weighted": _metric(
            weighted, "tok/step", int(steps.sum()), ratio_interval(weighted, accepted, steps)
        ),
    }


def _step(counts: DraftCounts, tpot: Metric) -> Metric:
    """Time of one verification: TPOT x tokens that it emitted."""
    if tpot.value is None:
        return _absent("ms", tpot.reason or "no time per output token")
    return Metric(value=tpot.value * counts.emitted / counts.verify_steps, unit="ms", better="down", n=tpot.n)
