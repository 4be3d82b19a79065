"""What a load was asked to be and what came back: pure data, as columns, picklable.

All times are `time.perf_counter_ns()` of the client: a request is stamped just before it is sent, an event
when it is read. No wall-clock time, and nothing derived: `harness.metrics` does the arithmetic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from paths.api import Counters, UserError

STEADY_SHARE = 0.95  # the steady window is where at least this share of the slots is measured work

IntColumn = npt.NDArray[np.int64]


class Phase(IntEnum):
    """Which prompts a request belongs to. Draining is a time, not a kind of request."""

    WARMUP = 0
    MEASURED = 1


class Cut(IntEnum):
    """Why the client's side ended a request before the engine did; NONE when the engine ended it."""

    NONE = 0
    TIMEOUT = 1
    CANCELLED = 2
    DISCONNECT = 3


@dataclass(frozen=True, kw_only=True)
class LoadSpec:
    """How requests are issued.

    request_rate None: closed loop, `concurrency` requests in flight at all times. Otherwise open loop:
    arrivals per second, `concurrency` being an optional cap whose waiting time stays visible. burstiness is
    the shape of the gamma distribution of the gaps (1: Poisson, inf: constant). num_prompts None: as many
    measured requests as `measure_s` and the concurrency need. Raises UserError.
    """

    concurrency: int | None
    request_rate: float | None
    burstiness: float
    num_prompts: int | None
    measure_s: float
    warmup_s: float
    timeout_s: float  # longest silence: of a request that has begun to answer, and of the engine
    osl: int
    seed: int
    request_timeout_s: float | None = None  # of one request from send to its last token; None: no limit
    warmup_waves: int = 1  # requests per slot that end before the measured phase begins (closed loop)
    min_requests: int | None = None  # measured requests, at least (closed loop); None: 2 per slot
    lag_limit_ms: float = 10.0  # how late the client may be: the larger of this and
    lag_share_of_ttft: float = 0.05  # this share of the median TTFT
    first_request_id: int = 0

    def __post_init__(self) -> None:
        if self.concurrency is None and self.request_rate is None:
            raise UserError("no load: set concurrency (at least 1) or request_rate (above 0)")
        if self.concurrency is not None and self.concurrency < 1:
            raise UserError(f"concurrency={self.concurrency}: must be at least 1; null means no limit")
        if self.request_rate is not None and not (0 < self.request_rate < math.inf):
            raise UserError(f"request_rate={self.request_rate}: must be above 0 and finite")
        if not self.burstiness > 0:
            raise UserError(f"burstiness={self.burstiness}: must be above 0 (1 Poisson, inf constant)")
        if self.num_prompts is not None and self.num_prompts < 1:
            raise UserError(f"num_prompts={self.num_prompts}: must be at least 1; null follows measure_s")
        if self.osl < 1:
            raise UserError(f"osl={self.osl}: must be at least 1")
        for name, value in (("measure_s", self.measure_s), ("warmup_s", self.warmup_s)):
            if not 0 <= value < math.inf:
                raise UserError(f"{name}={value}: must be 0 or more seconds")
        if not 0 < self.timeout_s < math.inf:
            raise UserError(f"timeout_s={self.timeout_s}: must be above 0 seconds")
        if self.request_timeout_s is not None and not self.request_timeout_s > 0:
            raise UserError(f"request_timeout_s={self.request_timeout_s}: must be above 0 seconds")

    @property
    def closed(self) -> bool:
        return self.request_rate is None

    @property
    def steady_requests(self) -> int:
        """Measured requests in flight that make the load steady (closed loop)."""
        # the tiny subtraction keeps 0.95 * 20 at 19 when the product is a hair above it
        return max(1, math.ceil(STEADY_SHARE * (self.concurrency or 1) - 1e-9))


@dataclass(frozen=True, kw_only=True)
class RequestColumns:
    """One entry per request in the order of sending; all arrays are [R]."""

    phase: npt.NDArray[np.int8]  # Phase
    prompt_tokens: npt.NDArray[np.int32]
    requested_tokens: npt.NDArray[np.int32]
    scheduled_ns: IntColumn  # open loop: arrival time; closed loop: when the slot became free
    ready_ns: IntColumn  # when the client could have sent it: schedule and slot both there
    sent_ns: IntColumn
    ended_ns: IntColumn  # read time of the closing event, or when the client gave up
    finish: npt.NDArray[np.int8]  # paths.api.FinishReason
    cut: npt.NDArray[np.int8]  # Cut
    prompt_hash: tuple[str, ...]
    errors: dict[int, str]  # request → what the engine said

    def __len__(self) -> int:
        return len(self.sent_ns)


@dataclass(frozen=True, kw_only=True)
class EventColumns:
    """One entry per event that was read, in the order of reading; all arrays are [E]."""

    time_ns: IntColumn  # read by the client: what every metric uses
    emitted_ns: IntColumn  # readable on the engine's host, by its own stamp of the same clock
    request: npt.NDArray[np.int32]  # index into RequestColumns
    tokens: npt.NDArray[np.int32]  # 0 for an event that only closes its request
    drafted: npt.NDArray[np.int32] | None = None  # drafts verified in its step; None: no speculation
    accepted: npt.NDArray[np.int32] | None = None  # of these, before the answer was cut


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Engine counters and the client's time when they arrived."""

    time_ns: int
    counters: Counters


@dataclass(frozen=True, kw_only=True)
class PhaseTimes:
    """Boundaries in order; None where the run ended before."""

    start_ns: int
    measured_ns: int | None  # first measured request was sent (open loop: its schedule began)
    issued_ns: int | None  # the last measured request was sent; draining begins
    end_ns: int


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Everything that one cell's load produced."""

    spec: LoadSpec
    exact_lengths: bool  # the workload promises that every answer has exactly the requested length
    requests: RequestColumns
    events: EventColumns
    times: PhaseTimes
    before: Snapshot | None = None  # engine idle, before the first request
    window_start: Snapshot | None = None  # as near as possible to the start of the steady window
    window_end: Snapshot | None = None
    after: Snapshot | None = None  # engine idle, after the last request
    repeated_prompts: int = 0
    aborted: str | None = None  # why the load was given up early
