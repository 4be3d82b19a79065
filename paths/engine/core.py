"""The engine that both built-in paths share: schedule, run, stop, report."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from paths.api import (
    Counters,
    Effective,
    EventDetail,
    FinishReason,
    Request,
    StartupReport,
    StepEvents,
    UserError,
)
from paths.engine.admission import AdmissionRules
from paths.engine.events import EventLog
from paths.engine.requests import RequestState, RequestTable
from paths.engine.runner import Runner, StepResult
from paths.engine.scheduler import Scheduler, StepPlan
from paths.engine.stats import process_usage
from paths.tokenizer import IncrementalDetokenizer, Tokenizer


class EngineCore:
    """A running built-in engine; see `paths.api.Engine` for the contract."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        runner: Runner,
        rules: AdmissionRules,
        eos_token_ids: Sequence[int],
        index_topk: int,
        tokenizer: Tokenizer | None,
        warm_up: Callable[[], StartupReport],
        recompiles: Callable[[], int],
        describe_effective: Callable[[Counters], Effective],
    ) -> None:
        self._scheduler = scheduler
        self._table: RequestTable = scheduler.table
        self._runner = runner
        self._rules = rules
        self._eos_token_ids = np.asarray(eos_token_ids, dtype=np.int32)
        self._index_topk = index_topk
        self._tokenizer = tokenizer
        self._warm_up = warm_up
        self._recompiles = recompiles
        self._describe_effective = describe_effective
        self._counters = Counters()
        self._events = EventLog()
        self._known: set[int] = set()
        self._arrivals = 0

    def warm_up(self) -> StartupReport:
        return self._warm_up()

    def add(self, request: Request) -> None:
        if request.request_id in self._known:
            raise UserError(f"request id {request.request_id}: already in use; give each request its own id")
        self._rules.check(request)
        state = RequestState(request=request, arrival=self._arrivals)
        if request.params.stop:
            assert self._tokenizer is not None
            state.detokenizer = IncrementalDetokenizer(self._tokenizer)
        self._arrivals += 1
        self._known.add(request.request_id)
        self._scheduler.waiting.append(state)

    def refuse(self, request_id: int, error: str) -> None:
        """End a request that `add` did not take, so that its sender hears of it as an event."""
        self._events.add_end(request_id, FinishReason.ERROR, EventDetail(error=error))

    def abort(self, request_id: int) -> None:
        if request_id not in self._known:
            return
        waiting = self._scheduler.waiting
        queued = next((s for s in waiting if s.request.request_id == request_id), None)
        if queued is not None:
            waiting.remove(queued)
        else:
            rows = np.flatnonzero(self._table.live & (self._table.request_ids == request_id))
            self._scheduler.finish(int(rows[0]))
        self._known.discard(request_id)
        self._events.add_end(request_id, FinishReason.ABORT)

    def has_work(self) -> bool:
        return bool(self._events) or self._scheduler.has_work()

    def step(self) -> StepEvents:
        plan = self._scheduler.plan()
        if len(plan.slots) == 0:
            return self._events.take()
        result = self._runner.execute(plan, self._table)
        self._count(plan, result.graph_mode)
        return self._advance(plan, result)

    def counters(self) -> Counters:
        return dataclasses.replace(
            self._counters,
            steps=dict(self._counters.steps),
            preemptions=self._scheduler.preemptions,
            recompiles=self._recompiles(),
            nan_logit_rows=self._runner.nan_rows(),
            **vars(process_usage()),
        )

    def effective(self) -> Effective:
        return self._describe_effective(self.counters())

    def close(self) -> None:
        self._scheduler.waiting.clear()

    def _count(self, plan: StepPlan, graph_mode: str) -> None:
        counters = self._counters
        counters.steps[graph_mode] += 1
        counters.tokens_real += plan.total_tokens
        counters.tokens_padded += plan.total_tokens
        # a row at or past the prompt's length has an output token as its input; recomputed ones count too
        end = plan.start + plan.num_tokens
        first_decode = np.maximum(plan.start, self._table.prompt_len[plan.slots])
        decode = int(np.maximum(end - first_decode, 0).sum())
        counters.decode_tokens += decode
        counters.prompt_tokens += plan.total_tokens - decode
        first_sparse = np.maximum(first_decode, self._index_topk)
        counters.decode_tokens_sparse += int(np.maximum(end - first_sparse, 0).sum())

    def _advance(self, plan: StepPlan, result: StepResult) -> StepEvents:
        """Write the new tokens, find who ends, and turn all of it into events."""
        table = self._table
        table.computed[plan.slots] += plan.num_tokens
        slots, tokens = plan.slots[plan.samples], result.tokens[plan.samples]
        table.token_ids[slots, table.total_len[slots]] = tokens
        table.total_len[slots] += 1
        total = table.total_len[slots]
        stopped = (
            np.isin(tokens, self._eos_token_ids)
            & ~table.ignore_eos[slots]
            & (total >= table.min_total[slots])
        )
        finish = np.where(total >= table.max_total[slots], FinishReason.LENGTH, FinishReason.NONE).astype(
            np.int8
        )
        finish[stopped] = FinishReason.STOP
        details: dict[int, EventDetail] = {}
        rows = np.flatnonzero(plan.samples)
        for at in np.flatnonzero(~table.plain[slots]):
            detail = self._finish_special(int(slots[at]), int(tokens[at]), finish, int(at))
            logprobs = result.logprobs.get(int(rows[at]))
            if logprobs is not None:
                detail = dataclasses.replace(detail, logprobs=(logprobs,))
            if detail != EventDetail():
                details[int(at)] = detail
        request_ids = table.request_ids[slots]
        for at in np.flatnonzero(finish):
            self._scheduler.finish(int(slots[at]))
            self._known.discard(int(request_ids[at]))
        self._counters.output_tokens += len(tokens)
        return self._events.take(request_ids=request_ids, token_ids=tokens, finish=finish, details=details)

    def _finish_special(self, slot: int, token: int, finish: npt.NDArray[np.int8], at: int) -> EventDetail:
        """Stop ids, stop strings and prompt log-probs of one request."""
        table = self._table
        state, params = table.state(slot), table.state(slot).params
        produced = int(table.total_len[slot] - table.prompt_len[slot])
        prompt_logprobs = None
        if params.prompt_logprobs is not None and produced == 1:
            prompt_logprobs = (None, *state.prompt_logprobs)
        past_minimum = produced >= params.min_tokens
        if past_minimum and token in params.stop_token_ids:
            finish[at] = FinishReason.STOP
        text = None
        if state.detokenizer is not None:
            cut = self._find_stop(state, token) if past_minimum else self._feed(state, token)
            if cut is not None:
                finish[at] = FinishReason.STOP
            if finish[at]:
                text = state.detokenizer.flush()[:cut]
        return EventDetail(prompt_logprobs=prompt_logprobs, text=text)

    @staticmethod
    def _feed(state: RequestState, token: int) -> None:
        assert state.detokenizer is not None
        state.detokenizer.append([token])

    @staticmethod
    def _find_stop(state: RequestState, token: int) -> int | None:
        """Where the earliest stop string begins in the text that this token completed, if one does."""
        assert state.detokenizer is not None
        new = state.detokenizer.append([token])
        text = state.detokenizer.text
        found = [
            at
            for stop in state.params.stop
            if (at := text.find(stop, max(0, len(text) - len(new) - len(stop) + 1))) >= 0
        ]
        return min(found, default=None)
