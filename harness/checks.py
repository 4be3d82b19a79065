"""Validity of a measurement: each check says ok, not ok, or (None) why it could not be judged. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from harness.counters import cpu_wait_share, nan_logit_rows, prefix_hit_rate, token_accounts
from harness.measurement import Measurement, Phase
from harness.percentiles import percentile
from harness.records import Check
from harness.request_times import Bools, RequestTimes
from harness.schedule import achieved_rate, client_lag_ms, client_read_lag_ms, measured_seconds
from harness.statuses import BROKEN_LENGTH, CODE, STATUSES, Status
from harness.window import Window

WINDOW_SHARE = 0.60  # of the measured phase
GENERATIONS = 2.0  # requests that each slot completes within the window
LITTLE_TOLERANCE = 0.05
PREFIX_HIT_LIMIT = 0.01
RATE_TOLERANCE = 0.05
CPU_WAIT_LIMIT = 0.05  # of the window
# not bad luck but a wrong answer: when one of these fails, no number of the cell means anything
INVALIDATING = (
    "osl",
    "tokens",
    "prefix_cache",
    "finite",
    "drafting",
    "acceptance",
    "bonus_token",
    "forced_al",
)


def judge(
    measurement: Measurement, times: RequestTimes, window: Window | None, excuse: str | None
) -> dict[str, Check]:
    """All checks that apply to this load. `excuse` says why there is no window."""
    checks = {
        "success": _success(measurement, times),
        "window_ok": _window_ok(measurement, window, excuse),
        "client_lag": _client_lag(measurement, times),
        "osl": _osl(measurement, times),
        "unique_prompts": _unique_prompts(measurement),
        "prefix_cache": _prefix_cache(measurement, times),
        "tokens": _tokens(measurement, times),
        "recompiles": _recompiles(measurement),
        "cpu_wait": _cpu_wait(measurement),
        "finite": _finite(measurement),
    }
    if measurement.spec.closed:
        checks["little"] = _little(measurement, window, excuse)
    else:
        checks["achieved_rate"] = _achieved_rate(measurement)
    return checks


def attempted(measurement: Measurement) -> Bools:
    """Which requests [R] count as attempts: the measured ones, or all when the warm-up was all there was."""
    measured = measurement.requests.phase == Phase.MEASURED
    return measured if measured.any() else np.ones(len(measured), dtype=bool)


def why_invalid(checks: Mapping[str, Check]) -> str | None:
    """The details of the failed checks that leave a cell without numbers; None when there are none."""
    failed = [
        f"{name}: {checks[name].detail}"
        for name in INVALIDATING
        if name in checks and checks[name].ok is False
    ]
    return "; ".join(failed) or None


def _cpu_wait(measurement: Measurement) -> Check:
    """Whether other work on the machine kept the engine from running."""
    share = cpu_wait_share(measurement)
    if share is None:
        return _unjudged("the engine does not tell how long it waited for a processor")
    detail = f"the engine waited for a processor {share:.1%} of the window (limit {CPU_WAIT_LIMIT:.0%})"
    if share <= CPU_WAIT_LIMIT:
        return Check(ok=True, detail=detail)
    return Check(ok=False, detail=f"{detail}: the machine is busy, measure again when it is idle")


def _finite(measurement: Measurement) -> Check:
    rows = nan_logit_rows(measurement)
    if rows is None:
        return _unjudged("no engine counters around the load")
    return Check(ok=rows == 0, detail=f"{rows} sampled rows had logits that are not a number")


def _unjudged(why: str) -> Check:
    return Check(ok=None, detail=why)


def broken_lengths(measurement: Measurement, times: RequestTimes) -> str | None:
    """Why the cell has no speed: an answer not as long as the workload promises. None when all are."""
    if not measurement.exact_lengths:
        return None
    measured = measurement.requests.phase == Phase.MEASURED
    broken = measured & np.isin(times.status, [CODE[status] for status in BROKEN_LENGTH])
    if not broken.any():
        return None
    first = int(np.flatnonzero(broken)[0])
    got, asked = int(times.output_tokens[first]), int(measurement.requests.requested_tokens[first])
    return (
        f"output length contract broken: {got} of {asked} tokens "
        f"({int(broken.sum())} of {int(measured.sum())} requests)"
    )


def _success(measurement: Measurement, times: RequestTimes) -> Check:
    """Every attempted request succeeded: latency knows only those that did."""
    rows = attempted(measurement)
    failed = np.flatnonzero(rows & (times.status != CODE[Status.OK]))
    tried = int(np.count_nonzero(rows))
    if tried == 0:
        return _unjudged("no request was sent")
    if failed.size == 0:
        return Check(ok=True, detail=f"all {tried} requests succeeded")
    first = int(failed[0])
    said = measurement.requests.errors.get(first, "no error was given")
    status = STATUSES[int(times.status[first])]
    detail = f"{failed.size} of {tried} requests failed; the first: {status} ({said})"
    return Check(ok=False, detail=detail)


def _window_ok(measurement: Measurement, window: Window | None, excuse: str | None) -> Check:
    """The window is most of the measured phase and sees each slot serve several requests."""
    phase_s = measured_seconds(measurement, window)
    if window is None or phase_s is None:
        return Check(ok=False, detail=excuse or "no measured phase")
    share = window.seconds / phase_s
    rounds = _generations(measurement, window)
    ok = share >= WINDOW_SHARE and rounds >= GENERATIONS
    return Check(
        ok=ok,
        detail=f"{share:.0%} of the measured phase (needs {WINDOW_SHARE:.0%}), "
        f"{rounds:.1f} request generations (needs {GENERATIONS:g})",
    )


def _generations(measurement: Measurement, window: Window) -> float:
    """Closed loop: requests that ended in the window per slot. Open loop: window by mean request time."""
    requests = measurement.requests
    ended = window.holds(requests.ended_ns)
    if measurement.spec.concurrency is not None and measurement.spec.closed:
        return int(np.count_nonzero(ended)) / measurement.spec.concurrency
    if not ended.any():
        return 0.0
    mean_s = float((requests.ended_ns - requests.sent_ns)[ended].mean()) / 1e9
    return window.seconds / mean_s if mean_s > 0 else 0.0


def _little(measurement: Measurement, window: Window | None, excuse: str | None) -> Check:
    """Little's law: time that requests spent in the window, by its length, is the concurrency."""
    if window is None or measurement.spec.concurrency is None:
        return _unjudged(excuse or "no concurrency was set")
    spent = window.overlap_ns(measurement.requests.sent_ns, measurement.requests.ended_ns).sum()
    found = float(spent) / (window.seconds * 1e9)
    asked = measurement.spec.concurrency
    error = abs(found - asked) / asked
    return Check(ok=error <= LITTLE_TOLERANCE, detail=f"{found:.4g} requests in flight of {asked} asked")


def _client_lag(measurement: Measurement, times: RequestTimes) -> Check:
    """The client itself must not be what is measured. With few samples p99 is nearly the maximum."""
    send, read = client_lag_ms(measurement), client_read_lag_ms(measurement)
    if send.size == 0:
        return _unjudged(measurement.aborted or "no measured request was sent")
    measured = (measurement.requests.phase == Phase.MEASURED) & (times.status == CODE[Status.OK])
    ttft, limit = times.ttft_ms(measured), measurement.spec.lag_limit_ms
    if ttft.size:
        limit = max(limit, measurement.spec.lag_share_of_ttft * percentile(ttft, 50))
    worst = percentile(send, 99)
    detail = f"sent late by p99 {worst:.3g} ms ({send.size} requests)"
    if read.size:
        tail = percentile(read, 99)
        worst, detail = max(worst, tail), f"{detail}, read late by p99 {tail:.3g} ms ({read.size} events)"
    return Check(ok=worst <= limit, detail=f"{detail}, limit {limit:.3g} ms")


def _osl(measurement: Measurement, times: RequestTimes) -> Check:
    if not measurement.exact_lengths:
        return _unjudged("the workload promises no lengths")
    broken = broken_lengths(measurement, times)
    if broken:
        return Check(ok=False, detail=broken)
    good = int(np.count_nonzero(times.status == CODE[Status.OK]))
    if good == 0:
        return _unjudged("no successful request")
    return Check(ok=True, detail=f"all {good} answers have the requested length and end with reason length")


def _unique_prompts(measurement: Measurement) -> Check:
    hashes = measurement.requests.prompt_hash
    repeated = max(measurement.repeated_prompts, len(hashes) - len(set(hashes)))
    if repeated:
        return Check(ok=False, detail=f"{repeated} prompts had been used before; the workload is exhausted")
    return Check(ok=True, detail=f"{len(hashes)} prompts, all different")


def _prefix_cache(measurement: Measurement, times: RequestTimes) -> Check:
    rate, prompts = prefix_hit_rate(measurement, times)
    if rate is None:
        return _unjudged("no engine counters around the window" if prompts == 0 else "no prompt was read")
    return Check(
        ok=rate <= PREFIX_HIT_LIMIT,
        detail=f"{rate:.2%} of {prompts} prompt tokens came from a cache (limit {PREFIX_HIT_LIMIT:.0%})",
    )


def _tokens(measurement: Measurement, times: RequestTimes) -> Check:
    accounts = token_accounts(measurement, times)
    if isinstance(accounts, str):
        return _unjudged(accounts)
    seen, counted = accounts
    return Check(ok=seen == counted, detail=f"client read {seen} tokens, engine counted {counted}")


def _recompiles(measurement: Measurement) -> Check:
    start, end = measurement.window_start, measurement.window_end
    if start is None or end is None:
        return _unjudged("no engine counters around the window")
    extra = end.counters.recompiles - start.counters.recompiles
    return Check(ok=extra == 0, detail=f"{extra} in the window")


def _achieved_rate(measurement: Measurement) -> Check:
    rate, sent = achieved_rate(measurement)
    asked = measurement.spec.request_rate
    if rate is None or asked is None:
        return _unjudged(f"{sent} measured requests span no time")
    ok = abs(rate - asked) / asked <= RATE_TOLERANCE
    return Check(ok=ok, detail=f"{rate:.4g} of {asked:.4g} req/s")
