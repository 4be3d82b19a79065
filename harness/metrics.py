"""From a measurement to the numbers of a cell. Pure; every number has its unit, sample count and excuse.

Window metrics count what happened inside the steady window: tokens by their own arrival, TTFT by the first
token, all other latencies by the last one. Only `ok` requests feed latency and throughput; every attempted
request is in the denominator of the success rate.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from harness.acceptance import Speculation, acceptance_metrics
from harness.acceptance_checks import acceptance_checks
from harness.checks import attempted, broken_lengths, judge
from harness.counters import cpu_seconds_per_token, dsa_active_token_frac, prefix_hit_rate
from harness.measurement import Measurement, Phase
from harness.percentiles import percentile, shortage
from harness.records import Check, Metric
from harness.request_times import NS_PER_MS, Bools, Gaps, RequestTimes, derive
from harness.schedule import achieved_rate, client_lag_ms, client_read_lag_ms, measured_seconds
from harness.statuses import CODE, Status, count
from harness.window import Window, steady_window

Better = Literal["up", "down", "none"]
Samples = npt.NDArray[np.float64]

NO_SAMPLE = "no successful request"
NO_DRAFTS = Speculation(mtp=0)
CLOSED_LOOP = "closed loop: requests have no schedule"


def summarize(
    measurement: Measurement, *, gpus: int, asked: Speculation = NO_DRAFTS
) -> tuple[dict[str, Metric], dict[str, Check], dict[str, int]]:
    """Metrics, validity checks and request statuses of one cell.

    Without a steady window the window metrics are None and say why; the full-run ones stand. When the
    workload promises exact lengths and one answer breaks the promise, no speed has a value. Statuses are
    those of the measured requests, or of the warm-up's when nothing else was sent. Raises MeasurementError.
    """
    times, gaps = derive(measurement)
    window, excuse = steady_window(measurement)
    scope = _Scope(measurement, times, gaps, window, broken_lengths(measurement, times) or excuse)
    metrics = (
        scope.throughput(gpus)
        | scope.full_run(broken_lengths(measurement, times))
        | scope.latency()
        | scope.scheduled()
        | scope.events()
        | scope.load()
        | scope.engine()
    )
    metrics |= acceptance_metrics(
        measurement, times, window, excuse, asked=asked, tpot=metrics["tpot_pooled_ms"]
    )
    checks = judge(measurement, times, window, excuse) | acceptance_checks(measurement, asked)
    return metrics, checks, count(times.status[attempted(measurement)])


def _number(
    value: float | None, unit: str, better: Better, n: int, *, reason: str | None = None, excluded: int = 0
) -> Metric:
    """A metric; whatever is not a finite number is absent and must come with its reason."""
    if value is None or not np.isfinite(value):
        return Metric(
            value=None, unit=unit, better=better, n=n, excluded=excluded, reason=reason or NO_SAMPLE
        )
    return Metric(value=float(value), unit=unit, better=better, n=n, excluded=excluded)


def _absent(unit: str, better: Better, reason: str) -> Metric:
    return Metric(value=None, unit=unit, better=better, n=0, reason=reason)


def _distribution(
    stem: str,
    samples: Samples,
    *,
    excuse: str | None,
    excluded: int = 0,
    empty: str = NO_SAMPLE,
    shows: tuple[str, ...] = ("mean", "p50", "p90", "p99"),
) -> dict[str, Metric]:
    """`<stem>_<mean|max|pNN>_ms` of [n] samples in ms; high percentiles only with enough samples."""
    return {f"{stem}_{what}_ms": _statistic(what, samples, excuse, excluded, empty) for what in shows}


def _statistic(what: str, samples: Samples, excuse: str | None, excluded: int, empty: str) -> Metric:
    n = len(samples)
    if excuse is not None:
        return _absent("ms", "down", excuse)
    if n == 0:
        return _number(None, "ms", "down", 0, reason=empty, excluded=excluded)
    if what == "mean":
        return _number(float(samples.mean()), "ms", "down", n, excluded=excluded)
    if what == "max":
        return _number(float(samples.max()), "ms", "down", n, excluded=excluded)
    percent = int(what[1:])
    few = shortage(n, percent)
    value = None if few else percentile(samples, percent)
    return _number(value, "ms", "down", n, reason=few, excluded=excluded)


class _Scope:
    """The measurement, cut to its window. `excuse`: why window metrics have no value, None when they have."""

    def __init__(
        self,
        measurement: Measurement,
        times: RequestTimes,
        gaps: Gaps,
        window: Window | None,
        excuse: str | None,
    ) -> None:
        self.m, self.times, self.gaps, self.excuse = measurement, times, gaps, excuse
        self.window = window
        self.ok: Bools = times.status == CODE[Status.OK]
        self.measured: Bools = measurement.requests.phase == Phase.MEASURED
        nothing = np.zeros(len(self.ok), dtype=bool)
        self.first_inside = window.holds(times.first_ns) if window else nothing
        self.last_inside = window.holds(times.last_ns) if window else nothing
        self.samples = self.ok & self.measured & self.last_inside  # requests behind TPOT and E2E

    def _rate(self, amount: float, unit: str, n: int) -> Metric:
        if self.excuse is not None or self.window is None:
            return _absent(unit, "up", self.excuse or NO_SAMPLE)
        return _number(amount / self.window.seconds, unit, "up", n)

    def throughput(self, gpus: int) -> dict[str, Metric]:
        """Per second of the window: whatever `ok` requests delivered in it, warm-up stragglers included."""
        events, requests = self.m.events, self.m.requests
        arrived = self.ok[events.request]
        if self.window is not None:
            arrived &= self.window.holds(events.time_ns)
        tokens = int(events.tokens[arrived].sum())
        prompts = int(requests.prompt_tokens[self.ok & self.first_inside].sum())
        ended = int(np.count_nonzero(self.ok & self.last_inside))
        return {
            "out_tps": self._rate(tokens, "tok/s", tokens),
            "out_tps_per_gpu": self._rate(tokens / gpus, "tok/s/gpu", tokens),
            "total_tps": self._rate(tokens + prompts, "tok/s", tokens + prompts),
            "req_per_s": self._rate(ended, "req/s", ended),
        }

    def full_run(self, excuse: str | None) -> dict[str, Metric]:
        """Over all measured requests, from the first send to the last token, ramp-up and drain included."""
        chosen = self.ok & self.measured
        output = int(self.times.output_tokens[chosen].sum())
        prompts = int(self.m.requests.prompt_tokens[chosen].sum())
        content = self.measured & self.times.has_content
        seconds = 0.0
        if content.any():
            begin = self.m.requests.sent_ns[self.measured].min()
            seconds = float(self.times.last_ns[content].max() - begin) / 1e9
        if excuse is None and not chosen.any():
            excuse = NO_SAMPLE
        if excuse is None and seconds <= 0:
            excuse = "the measured requests span no time"
        if excuse is not None:
            return {name: _absent("tok/s", "up", excuse) for name in ("out_tps_full", "total_tps_full")}
        return {
            "out_tps_full": _number(output / seconds, "tok/s", "up", output),
            "total_tps_full": _number((output + prompts) / seconds, "tok/s", "up", output + prompts),
        }

    def latency(self) -> dict[str, Metric]:
        """TTFT by first token, E2E and TPOT by last token inside the window."""
        times, excuse = self.times, self.excuse
        ttft = times.ttft_ms(self.ok & self.measured & self.first_inside)
        short = int(np.count_nonzero(self.samples & ~times.has_tpot))
        one_token = (
            NO_SAMPLE
            if not self.samples.any()
            else "every answer came in one event: no time per output token"
        )
        return (
            self._pooled_tpot(short, one_token)
            | _distribution(
                "tpot", times.tpot_ms(self.samples), excuse=excuse, excluded=short, empty=one_token
            )
            | _distribution("ttft", ttft, excuse=excuse)
            | _distribution("e2e", times.e2e_ms(self.samples), excuse=excuse)
        )

    def _pooled_tpot(self, short: int, empty: str) -> dict[str, Metric]:
        """All time after the first event by all tokens after it: weighs each token alike."""
        chosen = self.samples & self.times.has_tpot
        if self.excuse is not None or not chosen.any():
            why = self.excuse or empty
            return {
                "tpot_pooled_ms": _number(None, "ms", "down", 0, reason=why, excluded=short),
                "interactivity": _number(None, "tok/s/user", "up", 0, reason=why, excluded=short),
            }
        tokens = int((self.times.output_tokens - self.times.first_event_tokens)[chosen].sum())
        spent = float((self.times.last_ns - self.times.first_ns)[chosen].sum()) / NS_PER_MS
        pooled = spent / tokens
        n = int(np.count_nonzero(chosen))
        rate = 1000.0 / pooled if pooled > 0 else None
        instant = "all tokens after the first event arrived with it"
        return {
            "tpot_pooled_ms": _number(pooled, "ms", "down", n, excluded=short),
            "interactivity": _number(rate, "tok/s/user", "up", n, reason=instant, excluded=short),
        }

    def scheduled(self) -> dict[str, Metric]:
        """Open loop: from the scheduled time, so that waiting in the client is not forgotten."""
        requests, times = self.m.requests, self.times
        excuse = CLOSED_LOOP if self.m.spec.closed else self.excuse
        by_first = self.ok & self.measured & self.first_inside
        ttft = (times.first_ns - requests.scheduled_ns)[by_first] / NS_PER_MS
        e2e = (times.last_ns - requests.scheduled_ns)[self.samples] / NS_PER_MS
        queue = (requests.sent_ns - requests.scheduled_ns)[self.measured] / NS_PER_MS
        return (
            _distribution("ttft_sched", ttft, excuse=excuse)
            | _distribution("e2e_sched", e2e, excuse=excuse)
            | _distribution(
                "queue", queue, excuse=CLOSED_LOOP if self.m.spec.closed else None, shows=("mean",)
            )
            | {"achieved_rate": self._achieved_rate()}
        )

    def _achieved_rate(self) -> Metric:
        rate, n = achieved_rate(self.m)
        reason = CLOSED_LOOP if self.m.spec.closed else "no measured request was sent"
        return _number(rate, "req/s", "none", n, reason=reason)

    def events(self) -> dict[str, Metric]:
        """ICL: gap between events, what a user sees. ITL: the gap shared among the tokens that ended it."""
        gaps = self.gaps
        chosen = (self.ok & self.measured)[gaps.request]
        if self.window is not None:
            chosen &= self.window.holds(gaps.end_ns)
        icl = gaps.gap_ns[chosen] / NS_PER_MS
        itl = np.repeat(icl / gaps.tokens[chosen], gaps.tokens[chosen])
        empty = "no answer had a second event" if self.samples.any() else NO_SAMPLE
        tokens = int((self.times.output_tokens - self.times.first_event_tokens)[self.samples].sum())
        later = int((self.times.events[self.samples] - 1).sum())
        per_event = _number(tokens / later if later else None, "tok/event", "none", later, reason=empty)
        if self.excuse is not None:
            per_event = _absent("tok/event", "none", self.excuse)
        return (
            _distribution("icl", icl, excuse=self.excuse, empty=empty, shows=("p50", "p99", "max"))
            | _distribution("itl", itl, excuse=self.excuse, empty=empty, shows=("mean", "p50", "p99"))
            | {"tokens_per_event": per_event}
        )

    def load(self) -> dict[str, Metric]:
        """How the load went; valid also when the speed is not."""
        rows = attempted(self.m)
        tried, good = int(np.count_nonzero(rows)), int(np.count_nonzero(self.ok & rows))
        lag = client_lag_ms(self.m)
        phase_s = measured_seconds(self.m, self.window)
        unmeasured = self.m.aborted or "no measured request was sent"
        return {
            "success_rate": _number(
                good / tried if tried else None, "fraction", "up", tried, reason=unmeasured
            ),
            "output_tokens": _number(
                int(self.times.output_tokens[self.ok & self.measured].sum()), "tok", "none", good
            ),
            "requests_ok": _number(int(np.count_nonzero(self.ok & self.measured)), "requests", "none", tried),
            "measured_s": _number(phase_s, "s", "none", tried, reason=unmeasured),
            "window_s": _number(
                self.window.seconds if self.window else None,
                "s",
                "none",
                1 if self.window else 0,
                reason=self.excuse,
            ),
            **_distribution("client_lag", lag, excuse=None, empty=unmeasured, shows=("p99",)),
            **_distribution(
                "client_read_lag",
                client_read_lag_ms(self.m),
                excuse=None,
                empty="no event of a measured request was read",
                shows=("p99",),
            ),
        }

    def engine(self) -> dict[str, Metric]:
        """From the engine's counters around the window; None for an engine that could not be asked."""
        why = "no engine counters around the window"
        if self.m.window_start is not None and self.m.window_end is not None:
            why = "nothing arrived between the counters around the window"
        rate, prompts = prefix_hit_rate(self.m, self.times)
        cost, tokens = cpu_seconds_per_token(self.m)
        sparse, decoded = dsa_active_token_frac(self.m)
        known = self.m.window_end is None or self.m.window_end.counters.cpu_seconds is not None
        unpriced = why if known else "the engine does not tell its CPU seconds (Counters.cpu_seconds)"
        priced = _number(cost, "s/tok", "down", tokens, reason=unpriced)
        return {
            "prefix_hit_rate": _number(rate, "fraction", "none", prompts, reason=why),
            "dsa_active_token_frac": _number(sparse, "fraction", "none", decoded, reason=why),
            "cpu_s_per_token": priced if self.excuse is None else _absent("s/tok", "down", self.excuse),
        }
