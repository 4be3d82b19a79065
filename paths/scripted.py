"""A path that emits tokens on a script, in real time and without a model.

    python -m harness +path=scripted concurrency=64 path.options.gap_ms=5

It shows what the client measures when the truth is known: for tests, demos and power studies. Options:

    first_ms          milliseconds from arrival to a request's first event
    gap_ms            milliseconds between its events
    tokens_per_event  a list, repeated: tokens of the 1st, 2nd, … event
    fail_every        every n-th request ends with an error and no token (0: never)
    empty_every       every n-th request ends with reason `stop` and no token (0: never)
    early_stop_every  every n-th request stops after half of its tokens (0: never)
    requests          explicit scripts, used in turn by arrival: {events: [[ms, tokens], …], finish: length}
                      where finish is length, stop or error; replaces all of the above
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from paths.api import (
    Counters,
    Description,
    Effective,
    EngineConfig,
    EventDetail,
    FinishReason,
    Platform,
    Request,
    StartupReport,
    StepEvents,
    Unsupported,
    UserError,
)
from paths.engine.stats import process_usage

_FINISH = {"length": FinishReason.LENGTH, "stop": FinishReason.STOP, "error": FinishReason.ERROR}
_NS_PER_MS = 1_000_000
_LONGEST_NAP_S = 0.001  # so that new requests are noticed in time


@dataclass(frozen=True, kw_only=True)
class Script:
    """When a request emits how much: event e at `at_ns[e]` brings its total to `total[e]` tokens."""

    at_ns: npt.NDArray[np.int64]  # [E], from arrival
    total: npt.NDArray[np.int64]  # [E]
    finish: FinishReason


class ScriptedRequest(BaseModel):
    """An explicit script: [[ms, tokens], …] and how it ends."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    events: list[tuple[Annotated[float, Field(ge=0)], Annotated[int, Field(ge=0)]]]
    finish: Literal["length", "stop", "error"]


class ScriptOptions(BaseModel):
    """Validated options of the path; `parse` raises UserError."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    first_ms: float = Field(20.0, ge=0, allow_inf_nan=False)
    gap_ms: float = Field(10.0, ge=0, allow_inf_nan=False)
    tokens_per_event: list[Annotated[int, Field(ge=1)]] = Field([1], min_length=1)
    fail_every: int = Field(0, ge=0)
    empty_every: int = Field(0, ge=0)
    early_stop_every: int = Field(0, ge=0)
    requests: list[ScriptedRequest] = []

    @classmethod
    def parse(cls, options: dict[str, Any]) -> ScriptOptions:
        try:
            # through JSON, where a pair is a list
            return cls.model_validate_json(json.dumps(options))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = ".".join(str(part) for part in first["loc"])
            if first["type"] == "extra_forbidden":
                raise UserError(
                    f"path.options.{name}: unknown; scripted takes {', '.join(cls.model_fields)}"
                ) from error
            raise UserError(f"path.options.{name}={first['input']!r}: {first['msg']}") from error

    def script(self, arrival: int, max_tokens: int) -> Script:
        """The script of the request that arrived as number `arrival` (from 0)."""
        if self.requests:
            entry = self.requests[arrival % len(self.requests)]
            finish = _FINISH[entry.finish]
            if not entry.events:
                return self._without_tokens(finish)
            events = np.asarray(entry.events, dtype=np.float64).reshape(-1, 2)
            at = (events[:, 0] * _NS_PER_MS).astype(np.int64)
            return Script(at_ns=at, total=np.cumsum(events[:, 1]).astype(np.int64), finish=finish)
        number = arrival + 1
        if self.fail_every and number % self.fail_every == 0:
            return self._without_tokens(FinishReason.ERROR)
        if self.empty_every and number % self.empty_every == 0:
            return self._without_tokens(FinishReason.STOP)
        target, reason = max_tokens, FinishReason.LENGTH
        if self.early_stop_every and number % self.early_stop_every == 0:
            target, reason = max(1, max_tokens // 2), FinishReason.STOP
        events_needed = -(-target * len(self.tokens_per_event) // sum(self.tokens_per_event))
        counts = np.resize(self.tokens_per_event, events_needed + len(self.tokens_per_event))
        total: npt.NDArray[np.int64] = np.minimum(np.cumsum(counts), target).astype(np.int64)
        total = total[: int(np.argmax(total == target)) + 1]
        times = (self.first_ms + self.gap_ms * np.arange(len(total))) * _NS_PER_MS
        return Script(at_ns=times.astype(np.int64), total=total, finish=reason)

    def _without_tokens(self, finish: FinishReason) -> Script:
        at = np.array([self.first_ms * _NS_PER_MS], dtype=np.int64)
        return Script(at_ns=at, total=np.zeros(1, dtype=np.int64), finish=finish)


class ScriptedEngine:
    """Requests as columns; every step emits all events that are due."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._options = ScriptOptions.parse(config.options)
        self._vocab_size = int(config.model.hf_config.get("vocab_size", 2048))
        self._scripts: list[Script] = []
        self._ids = np.empty(0, dtype=np.int64)
        self._start = np.empty(0, dtype=np.int64)
        self._next = np.empty(0, dtype=np.int64)
        self._due = np.empty(0, dtype=np.int64)
        self._arrived: list[tuple[int, int, int, int]] = []  # columns of requests since the last step
        self._arrivals = 0
        self._aborted: list[int] = []
        self._counters = Counters()

    def warm_up(self) -> StartupReport:
        return StartupReport(
            load_s=0.0, compile_s=0.0, capture_s=0.0, graphs=0, kv_cache_bytes=0, weight_bytes=0, kv_tokens=0
        )

    def add(self, request: Request) -> None:
        script = self._options.script(self._arrivals, request.params.max_tokens)
        now = time.perf_counter_ns()
        self._arrivals += 1
        self._counters.prompt_tokens += len(request.prompt_ids)
        self._scripts.append(script)
        self._arrived.append((request.request_id, now, 0, now + int(script.at_ns[0])))

    def refuse(self, request_id: int, error: str) -> None:
        raise UserError(f"request {request_id}: {error}")  # `add` takes every request

    def _settle(self) -> None:
        """Move new arrivals into the columns."""
        if self._arrived:
            new = np.asarray(self._arrived, dtype=np.int64).T
            self._arrived.clear()
            self._ids, self._start, self._next, self._due = (
                np.concatenate(pair)
                for pair in zip((self._ids, self._start, self._next, self._due), new, strict=True)
            )

    def abort(self, request_id: int) -> None:
        self._settle()
        rows = np.flatnonzero(self._ids == request_id)
        if len(rows):
            self._aborted.append(request_id)
            self._keep(self._ids != request_id)

    def has_work(self) -> bool:
        return bool(len(self._ids)) or bool(self._arrived) or bool(self._aborted)

    def step(self) -> StepEvents:
        """Wait for the next event, at most a millisecond, and emit whatever is due."""
        self._settle()
        if not self._aborted and len(self._due):
            wait_s = (int(self._due.min()) - time.perf_counter_ns()) / 1e9
            if wait_s > 0:
                time.sleep(min(wait_s, _LONGEST_NAP_S))
        rows = np.flatnonzero(self._due <= time.perf_counter_ns())
        counts = np.zeros(len(rows), dtype=np.int32)
        finish = np.zeros(len(rows), dtype=np.int8)
        for at, row in enumerate(rows):
            counts[at], finish[at] = self._fire(int(row))
        events = self._collect(rows, counts, finish)
        done = np.zeros(len(self._ids), dtype=bool)
        done[rows[finish != FinishReason.NONE]] = True
        self._keep(~done)
        return events

    def _fire(self, row: int) -> tuple[int, FinishReason]:
        """Advance one request by one event."""
        script, event = self._scripts[row], int(self._next[row])
        before = int(script.total[event - 1]) if event else 0
        last = event + 1 == len(script.total)
        if not last:
            self._next[row] = event + 1
            self._due[row] = self._start[row] + script.at_ns[event + 1]
        return int(script.total[event]) - before, script.finish if last else FinishReason.NONE

    def _collect(
        self, rows: npt.NDArray[np.intp], counts: npt.NDArray[np.int32], finish: npt.NDArray[np.int8]
    ) -> StepEvents:
        aborted, self._aborted = self._aborted, []
        total = int(counts.sum())
        self._counters.steps["NONE"] += 1
        self._counters.output_tokens += total
        self._counters.decode_tokens += total
        details = {
            int(at): EventDetail(error="scripted failure")
            for at in np.flatnonzero(finish == FinishReason.ERROR)
        }
        return StepEvents(
            time_ns=time.perf_counter_ns(),
            request_ids=np.concatenate([self._ids[rows], np.array(aborted, dtype=np.int64)]),
            token_counts=np.concatenate([counts, np.zeros(len(aborted), dtype=np.int32)]),
            token_ids=(np.arange(total, dtype=np.int32) % self._vocab_size).astype(np.int32),
            finish=np.concatenate([finish, np.full(len(aborted), FinishReason.ABORT, dtype=np.int8)]),
            details=details,
        )

    def _keep(self, mask: npt.NDArray[np.bool_]) -> None:
        if mask.all():
            return
        self._scripts = [script for script, kept in zip(self._scripts, mask, strict=True) if kept]
        self._ids, self._start = self._ids[mask], self._start[mask]
        self._next, self._due = self._next[mask], self._due[mask]

    def counters(self) -> Counters:
        return dataclasses.replace(self._counters, steps=dict(self._counters.steps), **vars(process_usage()))

    def effective(self) -> Effective:
        return Effective(
            path=self._config.path,
            model_class="none",
            model_module="none",
            runner="script",
            compile_mode="none",
            graph_modes=dict(self._counters.steps),
            kernels={},
            dtype="none",
            kv_dtype="none",
            index_dtype="none",
            hadamard=False,
            kv_bytes_per_token=0,
            k_scale_origin="none",
            device="cpu",
            threads=1,
            pid=os.getpid(),
            notes=("tokens follow a script; no model ran",),
        )

    def close(self) -> None:
        self._settle()
        self._keep(np.zeros(len(self._ids), dtype=bool))


class ScriptedPath:
    """The `ExecutionPath` of this module."""

    name = "scripted"

    def describe(self, platform: Platform, config: EngineConfig) -> Description | Unsupported:
        ScriptOptions.parse(config.options)
        return Description(
            summary="emits tokens on a script; no model",
            model="none",
            runner="script",
            compile_mode="none",
            graph_mode="NONE",
            kernels={},
        )

    def start(self, config: EngineConfig) -> ScriptedEngine:
        return ScriptedEngine(config)
