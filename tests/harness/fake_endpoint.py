"""An endpoint on a virtual clock: requests are served by a script, and waiting costs no time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from harness.client.endpoint import EngineDied
from paths.api import Counters, EventDetail, FinishReason, Request, StartupReport, StepEvents

MS = 1_000_000


@dataclass(frozen=True)
class Answer:
    """Events as (ms after the start, tokens), and how the last one ends. NONE: it never ends."""

    events: tuple[tuple[float, int], ...]
    finish: FinishReason = FinishReason.LENGTH
    error: str | None = None


def steady(first_ms: float, gap_ms: float) -> Callable[[Request, int], Answer]:
    """One token per event, as many as asked."""

    def script(request: Request, number: int) -> Answer:
        return Answer(tuple((first_ms + gap_ms * i, 1) for i in range(request.params.max_tokens)))

    return script


class FakeClock:
    def __init__(self, now_ns: int = 1_000 * MS) -> None:
        self.now_ns = now_ns

    def __call__(self) -> int:
        return self.now_ns


class FakeEndpoint:
    """Serves every request at once (or `parallel` at a time, in order) as `script(request, number)` says.

    Events that fall on one moment form one frame, with one row per request. `submit_ms` is what a call
    of submit costs the client; `dies_ms` after the start poll raises EngineDied; `deaf`: aborts are not
    acknowledged.
    """

    startup = StartupReport(
        load_s=0.0, compile_s=0.0, capture_s=0.0, graphs=0, kv_cache_bytes=0, weight_bytes=0, kv_tokens=0
    )

    def __init__(
        self,
        script: Callable[[Request, int], Answer],
        *,
        parallel: int | None = None,
        submit_ms: float = 0.0,
        dies_ms: float | None = None,
        deaf: bool = False,
        on_poll: Callable[[int], None] | None = None,
    ) -> None:
        self.clock = FakeClock()
        self.script, self.parallel, self.submit_ms, self.deaf = script, parallel, submit_ms, deaf
        self.dies_ns = None if dies_ms is None else self.clock.now_ns + round(dies_ms * MS)
        self.on_poll = on_poll
        self.requests: list[Request] = []
        self.in_flight: set[int] = set()
        self.peak = 0
        self.counts = Counters(cpu_seconds=0.0, cpu_wait_seconds=0.0)
        self.snapshots: list[int] = []
        self._queue: list[int] = []
        self._running = 0
        self._due: list[
            tuple[int, int, int, int, FinishReason]
        ] = []  # time, sequence, request, tokens, finish
        self._sequence = 0

    def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            number = len(self.requests)
            self.requests.append(request)
            self.in_flight.add(request.request_id)
            self._queue.append(number)
        self.peak = max(self.peak, len(self.in_flight))
        self._start_queued(self.clock.now_ns)
        self.clock.now_ns += round(self.submit_ms * MS)

    def _start_queued(self, now_ns: int) -> None:
        while self._queue and (self.parallel is None or self._running < self.parallel):
            number = self._queue.pop(0)
            request = self.requests[number]
            answer = self.script(request, number)
            self._running += 1
            self.counts.prompt_tokens += len(request.prompt_ids)
            for at, (ms, tokens) in enumerate(answer.events):
                last = at + 1 == len(answer.events)
                self._push(
                    now_ns + round(ms * MS),
                    request.request_id,
                    tokens,
                    answer.finish if last else FinishReason.NONE,
                )

    def _push(self, when_ns: int, request: int, tokens: int, finish: FinishReason) -> None:
        heapq.heappush(self._due, (when_ns, self._sequence, request, tokens, finish))
        self._sequence += 1

    def poll(self, timeout_s: float) -> list[tuple[int, StepEvents]]:
        limit = self.clock.now_ns + round(timeout_s * 1e9)
        if self.on_poll is not None:
            self.on_poll(self.clock.now_ns)
        if self._due and self._due[0][0] <= limit:
            limit = max(self.clock.now_ns, self._due[0][0])
        if self.dies_ns is not None and self.dies_ns <= limit:
            raise EngineDied("crash", "exit code 1")
        self.clock.now_ns = limit
        return [(limit, self._frame(limit))] if self._due and self._due[0][0] <= limit else []

    def _frame(self, now_ns: int) -> StepEvents:
        told: dict[int, tuple[int, FinishReason]] = {}
        while self._due and self._due[0][0] <= now_ns:
            _, _, request, tokens, finish = heapq.heappop(self._due)
            if request in self.in_flight:
                told[request] = (told.get(request, (0,))[0] + tokens, finish)
                if finish is not FinishReason.NONE:
                    self.in_flight.discard(request)
                    self._running -= 1
        rows = [(request, tokens, finish) for request, (tokens, finish) in told.items()]
        total = sum(tokens for _, tokens, _ in rows)
        self.counts.output_tokens += total
        self._start_queued(now_ns)
        return StepEvents(
            time_ns=now_ns,
            request_ids=np.array([r for r, _, _ in rows], dtype=np.int64),
            token_counts=np.array([t for _, t, _ in rows], dtype=np.int32),
            token_ids=np.ones(total, dtype=np.int32),
            finish=np.array([f for _, _, f in rows], dtype=np.int8),
            details={
                at: EventDetail(error="refused: too long")
                for at, (_, _, finish) in enumerate(rows)
                if finish is FinishReason.ERROR
            },
        )

    def abort(self, request_ids: Sequence[int]) -> None:
        if not self.deaf:
            for request in request_ids:
                self._push(self.clock.now_ns, request, 0, FinishReason.ABORT)

    def counters(self) -> Counters:
        self.snapshots.append(self.clock.now_ns)
        return Counters(**vars(self.counts))

    def effective(self):
        raise NotImplementedError("no test of the load asks for it")

    def close(self) -> None:
        pass
