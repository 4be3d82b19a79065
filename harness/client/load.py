"""Drives one load against an endpoint and writes down what happened.

    measurement = run_load(endpoint, prompts, LoadSpec(concurrency=16, ...))

One thread polls. A frame of 1024 events costs a handful of numpy calls; Python touches a request only when it
starts. The warm-up hands its slots over to the measured requests one by one, so nothing drains in between.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from harness.client.endpoint import Endpoint, EngineDied
from harness.client.ledger import Ledger, Ticket
from harness.client.pacing import make_pacer
from harness.measurement import Cut, LoadSpec, Measurement, Phase, PhaseTimes, Snapshot
from harness.workload.source import Prompt, PromptSource
from paths.api import Request, SamplingParams

__all__ = ["LoadCancelled", "LoadInterrupted", "LoadSpec", "Measurement", "run_load"]

Clock = Callable[[], int]
OnProgress = Callable[[str, float], None]

_POLL_S = 0.05  # longest wait for a frame; bounds how late a time-out is noticed
_WATCH_NS = 50_000_000  # between two looks for requests that are overdue
_PROGRESS_NS = 500_000_000
GRACE_S = 60.0  # for the engine to acknowledge an abort, unless timeout_s is shorter
_STOCK = 1024  # prompts kept ready, at most


class LoadInterrupted(EngineDied):
    """The engine died under the load. `measurement` holds what had arrived."""

    def __init__(self, kind: str, reason: str, measurement: Measurement) -> None:
        super().__init__(kind, reason)
        self.measurement = measurement


class LoadCancelled(KeyboardInterrupt):
    """Ctrl-C during the load. `measurement` holds what had arrived; `finished`: that is everything."""

    def __init__(self, measurement: Measurement, *, finished: bool) -> None:
        super().__init__()
        self.measurement = measurement
        self.finished = finished


def run_load(
    endpoint: Endpoint,
    prompts: PromptSource,
    spec: LoadSpec,
    *,
    on_progress: OnProgress | None = None,
    clock: Clock = time.perf_counter_ns,
    interruptions: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Measurement:
    """Warm up, measure, drain. Every request has ended when this returns, so its ids may be used again.

    Raises LoadInterrupted (an EngineDied) and LoadCancelled (a KeyboardInterrupt), both with the partial
    measurement. `clock` must be the clock that the endpoint stamps with. `interruptions` surrounds the
    part in which Ctrl-C may be raised, for a caller that defers it.
    """
    load = _Load(endpoint, prompts, spec, on_progress, clock)
    try:
        with _quiet_collector(), interruptions():
            load.drive()
    except EngineDied as error:
        raise LoadInterrupted(error.kind, error.reason, load.close(Cut.DISCONNECT)) from error
    except KeyboardInterrupt as interrupt:
        raise LoadCancelled(load.close(Cut.CANCELLED), finished=load.finished) from interrupt
    return load.close(Cut.CANCELLED)


@contextmanager
def _quiet_collector() -> Iterator[None]:
    """No garbage collection during the load: a full pass stops the client for milliseconds."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Load:
    """The state of one run_load."""

    def __init__(
        self,
        endpoint: Endpoint,
        prompts: PromptSource,
        spec: LoadSpec,
        on_progress: OnProgress | None,
        clock: Clock,
    ) -> None:
        self._endpoint, self._prompts, self._spec, self._clock = endpoint, prompts, spec, clock
        self._on_progress = on_progress
        self._stock: dict[Phase, deque[Prompt]] = {phase: deque() for phase in Phase}
        self._params: dict[int, SamplingParams] = {}
        self._ledger = Ledger(spec.first_request_id)
        self._snapshots: dict[str, Snapshot] = {}
        self._aborted: str | None = None
        self._repeated = 0  # prompts that the engine had been sent before
        self.finished = False
        self._watched_ns = self._reported_ns = self._heard_ns = 0
        for phase in Phase:
            self._fill_stock(phase, spec.concurrency or 16)
        self._begin()

    def _begin(self) -> None:
        self._start_ns = self._clock()
        self._pacer = make_pacer(self._spec, self._start_ns)

    def drive(self) -> None:
        self._snapshot("before")
        self._begin()  # again: asking the engine took time, and slots are free from now on
        ledger, pacer = self._ledger, self._pacer
        while True:
            self._send(pacer.due(self._clock(), ledger))
            self._watch(self._clock())  # after sending: asking for counters must not hold a free slot
            if pacer.issued_ns is not None and ledger.occupied == 0:
                break
            for read_ns, events in self._endpoint.poll(self._wait_s()):
                self._heard_ns = read_ns
                freed = ledger.absorb(read_ns, events)
                if freed:
                    pacer.freed(freed, read_ns)
                    pacer.note(read_ns, ledger)
        self._snapshot("after")
        if "window_start" in self._snapshots:  # the last frame ended both the window and the load
            self._snapshots.setdefault("window_end", self._snapshots["after"])
        self.finished = True

    def _wait_s(self) -> float:
        wait = self._pacer.wait_ns(self._clock())
        return _POLL_S if wait is None else min(_POLL_S, wait / 1e9)

    def _send(self, tickets: list[Ticket]) -> None:
        if not tickets:
            return
        prompts = [self._take(ticket.phase) for ticket in tickets]
        lengths = [(len(prompt.ids), prompt.max_tokens) for prompt in prompts]
        row = self._ledger.open(tickets, lengths, [prompt.hash for prompt in prompts])
        first = self._spec.first_request_id + row
        requests = [
            Request(request_id=first + i, prompt_ids=prompt.ids, params=self._sampling(prompt.max_tokens))
            for i, prompt in enumerate(prompts)
        ]
        now = self._clock()
        self._ledger.stamp(row, now)
        self._endpoint.submit(requests)
        self._pacer.note(now, self._ledger)
        self._repeated += self._prompts.mark_sent(prompts)
        for phase in {ticket.phase for ticket in tickets}:  # the engine is busy now: draw the next prompts
            self._fill_stock(phase, min(_STOCK, len(tickets)))

    def _sampling(self, max_tokens: int) -> SamplingParams:
        """Greedy; one object per length, so that a batch of requests pickles it once."""
        if max_tokens not in self._params:
            exact = self._prompts.exact_lengths
            self._params[max_tokens] = SamplingParams(
                max_tokens=max_tokens, min_tokens=max_tokens if exact else 0, ignore_eos=exact
            )
        return self._params[max_tokens]

    def _fill_stock(self, phase: Phase, level: int) -> None:
        missing = level - len(self._stock[phase])
        if missing > 0:
            self._stock[phase].extend(self._prompts.next(missing, phase=phase))

    def _take(self, phase: Phase) -> Prompt:
        if not self._stock[phase]:
            self._fill_stock(phase, 1)
        return self._stock[phase].popleft()

    def _watch(self, now: int) -> None:
        """What is looked at now and then: window bounds, hopeless loads, time-outs, progress."""
        ledger, pacer, spec = self._ledger, self._pacer, self._spec
        if pacer.steady_ns is not None and "window_start" not in self._snapshots:
            self._snapshot("window_start")
        if "window_end" not in self._snapshots and self._window_closed():
            self._snapshot("window_end")
        if pacer.issued_ns is None and ledger.failures_in_a_row >= max(32, 2 * (spec.concurrency or 0)):
            self._aborted = f"{ledger.failures_in_a_row} requests failed in a row ({ledger.last_error})"
            pacer.stop(now)
        if now - self._watched_ns >= _WATCH_NS:
            self._watched_ns = now
            self._expire(now)
        if self._on_progress is not None and now - self._reported_ns >= _PROGRESS_NS:
            self._reported_ns = now
            self._on_progress(*pacer.progress(now, ledger))

    def _window_closed(self) -> bool:
        if self._pacer.issued_ns is None or "window_start" not in self._snapshots:
            return False
        return not self._spec.closed or self._ledger.running[Phase.MEASURED] < self._spec.steady_requests

    def _expire(self, now: int) -> None:
        """Abort overdue requests. An engine that does not even acknowledge that has stopped working."""
        spec = self._spec
        total_ns = None if spec.request_timeout_s is None else round(spec.request_timeout_s * 1e9)
        idle_ns = round(spec.timeout_s * 1e9)
        overdue = self._ledger.overdue(now, total_ns=total_ns, idle_ns=idle_ns)
        if overdue:
            self._endpoint.abort(overdue)
        since = self._ledger.leaving_since()
        grace_ns = round(min(GRACE_S, spec.timeout_s) * 1e9)
        if since is not None and now - max(since, self._heard_ns) > grace_ns:
            raise EngineDied(
                "timeout",
                f"engine hangs: it does not end {self._ledger.occupied} requests that were given up"
                f" ({self._ledger.last_error}; timeout_s={spec.timeout_s:g})",
            )

    def _snapshot(self, name: str) -> None:
        counters = self._endpoint.counters()
        self._snapshots[name] = Snapshot(time_ns=self._clock(), counters=counters)

    def close(self, cut: Cut) -> Measurement:
        """End what is still running with `cut` and hand over the books."""
        now = self._clock()
        self._ledger.give_up_all(cut, now)
        pacer = self._pacer
        times = PhaseTimes(
            start_ns=self._start_ns, measured_ns=pacer.measured_ns, issued_ns=pacer.issued_ns, end_ns=now
        )
        return Measurement(
            spec=self._spec, exact_lengths=self._prompts.exact_lengths, requests=self._ledger.requests(),
            events=self._ledger.events(), times=times, repeated_prompts=self._repeated,
            aborted=self._aborted, **self._snapshots,
        )  # fmt: skip
