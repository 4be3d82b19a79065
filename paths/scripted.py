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
    accepted          with mtp: a list, repeated: drafts accepted by a request's 1st, 2nd, … verification
                      (tokens_per_event does not count then); mtp_forced_al draws them instead

A token is a function of prompt and position, and its log-probabilities fall with their rank, so that answers
can be compared:

    other_token_every every n-th token of an answer is another one (0: never)
    sharpness         1: a rank costs ln 2; log-probabilities of 2 fall twice as fast
"""

from __future__ import annotations

import dataclasses
import os
import time
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

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
    TokenLogprobs,
    Unsupported,
    UserError,
)
from paths.engine.stats import process_usage
from paths.script import Answer, ScriptOptions

_LONGEST_NAP_S = 0.001  # so that new requests are noticed in time


class _Fired(NamedTuple):
    """One event of one request."""

    tokens: npt.NDArray[np.int32]
    finish: FinishReason
    drafted: int
    accepted: int
    logprobs: tuple[TokenLogprobs, ...] | None


def _options(config: EngineConfig) -> ScriptOptions:
    """Raises UserError."""
    options = ScriptOptions.parse(config.options)
    if config.mtp and options.requests:
        raise UserError(
            f"mtp={config.mtp}: path.options.requests scripts no drafts; set mtp=0 or leave it out"
        )
    return options


class ScriptedEngine:
    """Requests as columns; every step emits all events that are due."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self._options = _options(config)
        self._vocab_size = int(config.model.hf_config.get("vocab_size", 2048))
        self._answers: list[Answer] = []
        self._ids = np.empty(0, dtype=np.int64)
        self._start = np.empty(0, dtype=np.int64)
        self._next = np.empty(0, dtype=np.int64)
        self._due = np.empty(0, dtype=np.int64)
        self._arrived: list[tuple[int, int, int, int]] = []  # columns of requests since the last step
        self._arrivals = 0
        self._aborted: list[int] = []
        self._counters = Counters(accepted_at=[0] * config.mtp, verified_at=[0] * config.mtp)

    def warm_up(self) -> StartupReport:
        return StartupReport(
            load_s=0.0, compile_s=0.0, capture_s=0.0, graphs=0, kv_cache_bytes=0, weight_bytes=0, kv_tokens=0
        )

    def add(self, request: Request) -> None:
        answer = self._options.answer(
            request,
            self._arrivals,
            vocab_size=self._vocab_size,
            mtp=self._config.mtp,
            forced_al=self._config.mtp_forced_al,
        )
        now = time.perf_counter_ns()
        self._arrivals += 1
        self._counters.prompt_tokens += len(request.prompt_ids)
        self._answers.append(answer)
        self._arrived.append((request.request_id, now, 0, now + int(answer.script.at_ns[0])))

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
        fired = [self._fire(int(row)) for row in rows]
        events = self._collect(rows, fired)
        done = np.zeros(len(self._ids), dtype=bool)
        done[rows[[one.finish is not FinishReason.NONE for one in fired]]] = True
        self._keep(~done)
        return events

    def _fire(self, row: int) -> _Fired:
        """Advance one request by one event."""
        answer, event = self._answers[row], int(self._next[row])
        script = answer.script
        before = int(script.total[event - 1]) if event else 0
        after = int(script.total[event])
        last = event + 1 == len(script.total)
        if not last:
            self._next[row] = event + 1
            self._due[row] = self._start[row] + script.at_ns[event + 1]
        return _Fired(
            tokens=answer.tokens(before, after),
            finish=script.finish if last else FinishReason.NONE,
            drafted=int(script.drafted[event]),
            accepted=int(script.accepted[event]),
            logprobs=answer.logprobs(before, after),
        )

    def _collect(self, rows: npt.NDArray[np.intp], fired: list[_Fired]) -> StepEvents:
        aborted, self._aborted = self._aborted, []
        self._count(fired)
        details = {
            at: EventDetail(error="scripted failure", logprobs=one.logprobs)
            if one.finish is FinishReason.ERROR
            else EventDetail(logprobs=one.logprobs)
            for at, one in enumerate(fired)
            if one.finish is FinishReason.ERROR or one.logprobs is not None
        }
        none = [0] * len(aborted)
        drafts = [[one.drafted for one in fired] + none, [one.accepted for one in fired] + none]
        drafted, accepted = np.array(drafts, dtype=np.int32)
        return StepEvents(
            time_ns=time.perf_counter_ns(),
            request_ids=np.concatenate([self._ids[rows], np.array(aborted, dtype=np.int64)]),
            token_counts=np.array([len(one.tokens) for one in fired] + none, dtype=np.int32),
            token_ids=np.concatenate([np.empty(0, np.int32), *(one.tokens for one in fired)]),
            finish=np.array(
                [one.finish for one in fired] + [FinishReason.ABORT] * len(aborted), dtype=np.int8
            ),
            drafted=drafted if self._config.mtp else None,
            accepted=accepted if self._config.mtp else None,
            details=details,
        )

    def _count(self, fired: list[_Fired]) -> None:
        counters = self._counters
        counters.steps["NONE"] += 1
        for one in fired:
            counters.output_tokens += len(one.tokens)
            counters.decode_tokens += len(one.tokens)
            if one.drafted:
                counters.verify_steps += 1
                counters.drafted_tokens += one.drafted
                counters.accepted_tokens += one.accepted
                counters.truncated_tokens += one.accepted + 1 - len(one.tokens)
                for draft in range(one.drafted):
                    counters.verified_at[draft] += 1
                    counters.accepted_at[draft] += draft < one.accepted

    def _keep(self, mask: npt.NDArray[np.bool_]) -> None:
        if mask.all():
            return
        self._answers = [answer for answer, kept in zip(self._answers, mask, strict=True) if kept]
        self._ids, self._start = self._ids[mask], self._start[mask]
        self._next, self._due = self._next[mask], self._due[mask]

    def counters(self) -> Counters:
        counters = self._counters
        return dataclasses.replace(
            counters,
            steps=dict(counters.steps),
            accepted_at=list(counters.accepted_at),
            verified_at=list(counters.verified_at),
            **vars(process_usage()),
        )

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
            mtp=self._config.mtp,
            mtp_forced_al=self._config.mtp_forced_al,
            notes=("tokens follow a script; no model ran",),
        )

    def close(self) -> None:
        self._settle()
        self._keep(np.zeros(len(self._ids), dtype=bool))


class ScriptedPath:
    """The `ExecutionPath` of this module."""

    name = "scripted"

    def describe(self, platform: Platform, config: EngineConfig) -> Description | Unsupported:
        _options(config)
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
