"""When the next request may leave: closed loop (a slot is free) or open loop (its time has come)."""

from __future__ import annotations

import math
from collections import deque
from typing import Protocol

import numpy as np

from harness.client.ledger import Ledger, Ticket
from harness.measurement import LoadSpec, Phase
from harness.workload.arrival import arrival_times

_WINDOW_SHARE = 0.62  # of the measured phase; the check asks for 0.60
_GENERATIONS = 2  # each slot serves this many requests within the window


class Pacer(Protocol):
    """Decides what is sent and which moments bound the phases."""

    measured_ns: int | None  # measured phase began
    steady_ns: int | None  # steady window began, as far as can be told while it runs
    issued_ns: int | None  # nothing more will be sent

    def due(self, now_ns: int, ledger: Ledger) -> list[Ticket]:
        """Leave for everything that may be sent now."""

    def freed(self, count: int, when_ns: int) -> None:
        """`count` slots became free."""

    def note(self, now_ns: int, ledger: Ledger) -> None:
        """Requests were sent or ended at `now_ns`."""

    def wait_ns(self, now_ns: int) -> int | None:
        """Time until something falls due by itself; None when only an event can change that."""

    def stop(self, now_ns: int) -> None:
        """Send nothing more."""

    def progress(self, now_ns: int, ledger: Ledger) -> tuple[str, float]:
        """Name of the phase and the share of it that is done."""


class ClosedLoop:
    """`concurrency` requests in flight. A slot's next request leaves when its previous one has ended.

    Warm-up lasts `warmup_waves` and `warmup_s`; then measured requests take the slots one by one, without
    draining. They are issued until `measure_s` have passed, `min_requests` were sent, two per slot have ended
    since the load became steady, and the steady part is most of the phase; or until num_prompts.
    """

    def __init__(self, spec: LoadSpec, start_ns: int) -> None:
        assert spec.concurrency is not None
        self._spec, self._start_ns = spec, start_ns
        self._slots = spec.concurrency
        self._warm_requests = spec.warmup_waves * self._slots
        self._least = spec.min_requests or _GENERATIONS * self._slots
        self._free = [start_ns] * self._slots  # when each free slot became free
        self._ended_at_steady = 0
        self.measured_ns: int | None = None
        self.steady_ns: int | None = None
        self.issued_ns: int | None = None

    def due(self, now_ns: int, ledger: Ledger) -> list[Ticket]:
        if not self._free or self.issued_ns is not None:
            return []
        phase = Phase.MEASURED if self._warm(now_ns, ledger) else Phase.WARMUP
        count = len(self._free)
        if phase is Phase.MEASURED:
            if self.measured_ns is None:
                self.measured_ns = now_ns
            if self._enough(now_ns, ledger):
                self.stop(now_ns)
                return []
            if self._spec.num_prompts is not None:
                count = min(count, self._spec.num_prompts - ledger.sent[Phase.MEASURED])
        chosen, self._free = self._free[:count], self._free[count:]
        return [Ticket(phase, ready, ready) for ready in chosen]

    def _warm(self, now_ns: int, ledger: Ledger) -> bool:
        if self.measured_ns is not None:
            return True
        ended = ledger.sent[Phase.WARMUP] - ledger.running[Phase.WARMUP]
        return ended >= self._warm_requests and now_ns - self._start_ns >= self._spec.warmup_s * 1e9

    def _enough(self, now_ns: int, ledger: Ledger) -> bool:
        issued = ledger.sent[Phase.MEASURED]
        if self._spec.num_prompts is not None:
            return issued >= self._spec.num_prompts
        assert self.measured_ns is not None
        phase_ns = now_ns - self.measured_ns
        return (
            phase_ns >= self._spec.measure_s * 1e9
            and issued >= self._least
            and self.steady_ns is not None
            and self._ended(ledger) - self._ended_at_steady >= _GENERATIONS * self._slots
            and now_ns - self.steady_ns >= _WINDOW_SHARE * phase_ns
        )

    def _ended(self, ledger: Ledger) -> int:
        return sum(ledger.sent.values()) - sum(ledger.running.values())

    def freed(self, count: int, when_ns: int) -> None:
        self._free.extend([when_ns] * count)

    def note(self, now_ns: int, ledger: Ledger) -> None:
        if self.steady_ns is None and ledger.running[Phase.MEASURED] >= self._spec.steady_requests:
            self.steady_ns, self._ended_at_steady = now_ns, self._ended(ledger)
        # the last of num_prompts has left: draining begins now, not when a slot comes free
        if self._spec.num_prompts is not None and ledger.sent[Phase.MEASURED] >= self._spec.num_prompts:
            self.stop(now_ns)

    def wait_ns(self, now_ns: int) -> int | None:
        return None

    def stop(self, now_ns: int) -> None:
        if self.issued_ns is None:
            self.issued_ns = now_ns

    def progress(self, now_ns: int, ledger: Ledger) -> tuple[str, float]:
        if self.issued_ns is not None:
            return "drain", 1.0 - ledger.occupied / self._slots
        if self.measured_ns is None:
            ended = ledger.sent[Phase.WARMUP] - ledger.running[Phase.WARMUP]
            passed = (now_ns - self._start_ns) / 1e9
            return "warm-up", _share((ended, self._warm_requests), (passed, self._spec.warmup_s))
        issued = ledger.sent[Phase.MEASURED]
        if self._spec.num_prompts is not None:
            return "measure", _share((issued, self._spec.num_prompts))
        passed = (now_ns - self.measured_ns) / 1e9
        return "measure", _share((issued, self._least), (passed, self._spec.measure_s))


def _share(*parts: tuple[float, float]) -> float:
    """The least advanced of several (done, wanted) conditions, within 0..1."""
    return min((min(1.0, done / wanted) for done, wanted in parts if wanted > 0), default=1.0)


class OpenLoop:
    """Requests leave at times drawn before the start, whatever the engine does; `concurrency` may cap them.

    A request that waits for the cap keeps its scheduled time, so that its waiting stays visible.
    """

    def __init__(self, spec: LoadSpec, start_ns: int) -> None:
        assert spec.request_rate is not None
        warmup, measured = planned_arrivals(spec)
        self._boundary = len(warmup)
        self._end_of_warmup_ns = start_ns + round(len(warmup) / spec.request_rate * 1e9)
        offsets = np.concatenate((warmup, measured + len(warmup) / spec.request_rate))
        self._times: list[int] = (start_ns + np.rint(offsets * 1e9).astype(np.int64)).tolist()
        self._next = 0
        self._slots = None if spec.concurrency is None else deque([start_ns] * spec.concurrency)
        self._start_ns = start_ns
        self.measured_ns: int | None = None
        self.steady_ns: int | None = None
        self.issued_ns: int | None = None

    def due(self, now_ns: int, ledger: Ledger) -> list[Ticket]:
        tickets: list[Ticket] = []
        if self.issued_ns is not None:
            return tickets
        while self._next < len(self._times) and self._times[self._next] <= now_ns:
            if self._slots is not None and not self._slots:
                break
            scheduled = self._times[self._next]
            ready = scheduled if self._slots is None else max(scheduled, self._slots.popleft())
            phase = Phase.WARMUP if self._next < self._boundary else Phase.MEASURED
            tickets.append(Ticket(phase, scheduled, ready))
            self._next += 1
        return tickets

    def freed(self, count: int, when_ns: int) -> None:
        if self._slots is not None:
            self._slots.extend([when_ns] * count)

    def note(self, now_ns: int, ledger: Ledger) -> None:
        if self.measured_ns is None and (now_ns >= self._end_of_warmup_ns or ledger.sent[Phase.MEASURED]):
            self.measured_ns = self._end_of_warmup_ns
        if self.steady_ns is None and self.measured_ns is not None and not ledger.running[Phase.WARMUP]:
            self.steady_ns = now_ns
        if self._next == len(self._times):
            self.stop(now_ns)

    def wait_ns(self, now_ns: int) -> int | None:
        if (
            self.issued_ns is not None
            or self._next == len(self._times)
            or (self._slots is not None and not self._slots)
        ):
            return None
        return max(0, self._times[self._next] - now_ns)

    def stop(self, now_ns: int) -> None:
        if self.issued_ns is None:
            self.issued_ns = now_ns

    def progress(self, now_ns: int, ledger: Ledger) -> tuple[str, float]:
        if self.issued_ns is not None:
            return "drain", 1.0 - ledger.occupied / max(ledger.rows, 1)
        if self._next < self._boundary:
            return "warm-up", self._next / self._boundary
        return "measure", (self._next - self._boundary) / (len(self._times) - self._boundary)


def planned_arrivals(spec: LoadSpec) -> tuple[np.ndarray, np.ndarray]:
    """Warm-up and measured arrival times in seconds, each from the start of its own phase."""
    assert spec.request_rate is not None
    rate = spec.request_rate
    counts = (
        max(1, math.ceil(rate * spec.warmup_s)),
        spec.num_prompts if spec.num_prompts is not None else max(2, math.ceil(rate * spec.measure_s)),
    )
    rng = np.random.default_rng([spec.seed & 0xFFFFFFFF, 1])
    warmup, measured = (arrival_times(n, rate=rate, burstiness=spec.burstiness, rng=rng) for n in counts)
    return warmup, measured


def make_pacer(spec: LoadSpec, start_ns: int) -> Pacer:
    return ClosedLoop(spec, start_ns) if spec.closed else OpenLoop(spec, start_ns)
