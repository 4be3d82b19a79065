"""The engine that the built-in paths share: schedule, launch, read, report."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
from paths.engine.events import EventLog, TokenColumns
from paths.engine.output import StepOutput, StepResult
from paths.engine.requests import RequestState
from paths.engine.runner import Runner
from paths.engine.scheduler import Scheduler, StepPlan
from paths.engine.stopping import StopRules
from paths.engine.tally import Tally
from paths.engine.verified import check_verification, cut_behind_end
from paths.tokenizer import IncrementalDetokenizer, Tokenizer


@dataclass(frozen=True, kw_only=True)
class LaunchedStep:
    """A step whose tokens have not been read. Its N requests may have ended meanwhile."""

    output: StepOutput
    slots: npt.NDArray[np.int32]  # [N]
    tenancy: npt.NDArray[np.int64]  # [N] of the slots, when it was launched
    at: npt.NDArray[np.int32]  # [N] position of the new token, of the first of several
    num_drafts: npt.NDArray[np.int32] | None = None  # [N] that it verifies; None: the engine does not draft


class EngineCore:
    """A running built-in engine; see `paths.api.Engine` for the contract.

    A step is launched, then its tokens are read. With an asynchronous runner whose step is not over when its
    launch returns, the next one is launched first: lengths run ahead, and a token that arrives for a request
    which ended meanwhile is discarded. On a CPU a launch returns when the step is over, so there is nothing
    to overlap and tokens are read at once; `defer_output` postpones the reading all the same.

    With an engine that drafts (scheduler.mtp > 0) tokens are always read before the next step is planned: how
    many drafts were accepted decides on lengths, pages and the next drafts. A request whose steps need the
    host (log-probs, forced decode) has no drafts verified: each of its steps yields one token.
    """

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        runner: Runner,
        rules: AdmissionRules,
        eos_token_ids: Sequence[int],
        tokenizer: Tokenizer | None,
        tally: Tally,
        warm_up: Callable[[EngineCore], StartupReport],
        describe_effective: Callable[[Counters], Effective],
        defer_output: bool = False,
    ) -> None:
        self._scheduler = scheduler
        self._table = scheduler.table
        self._runner = runner
        self._rules = rules
        self._stop_rules = StopRules(scheduler.table, eos_token_ids)
        self._tokenizer = tokenizer
        self._tally = tally
        self._warm_up = warm_up
        self._describe_effective = describe_effective
        self._defer_output = defer_output
        self._in_flight: deque[LaunchedStep] = deque()
        self._mtp = scheduler.mtp
        self._events = EventLog(speculates=self._mtp > 0)
        self._known: set[int] = set()
        self._arrivals = 0

    def warm_up(self) -> StartupReport:
        report = self._warm_up(self)
        self._tally.reset()
        return report

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
        return bool(self._events) or bool(self._in_flight) or self._scheduler.has_work()

    def step(self) -> StepEvents:
        plan = self._scheduler.plan(may_preempt=not self._in_flight)
        if plan is None or len(plan.slots) == 0:
            self._read_until(0)
        else:
            self._read_until(1 if self._launch(plan) else 0)
        return self._events.take()

    def counters(self) -> Counters:
        """For the bounds of a window: on an accelerator this waits for the steps in flight (`nan_rows`)."""
        return self._tally.counters()

    def effective(self) -> Effective:
        return self._describe_effective(self.counters())

    def close(self) -> None:
        self._scheduler.waiting.clear()

    def _launch(self, plan: StepPlan) -> bool:
        """Whether its tokens may be read after the next launch."""
        table, count = self._table, plan.num_samples
        output = self._runner.execute(plan, table)
        self._tally.count(plan)
        slots = plan.slots[:count]
        drafts = None
        needs_host = True in table.needs_host[plan.slots].tolist()
        if self._mtp:
            drafts = plan.num_logits - 1
            table.num_drafts[slots] = (
                np.where(table.needs_host[slots], 0, self._mtp) if needs_host else self._mtp
            )
        self._in_flight.append(
            LaunchedStep(
                output=output,
                slots=slots,
                tenancy=table.tenancy[slots],
                at=table.total_len[slots],
                num_drafts=drafts,
            )
        )
        table.computed[plan.slots] += plan.num_tokens
        table.total_len[slots] += 1
        if self._mtp or not self._runner.asynchronous or needs_host:
            return False
        return self._defer_output or not output.ready()

    def _read_until(self, left: int) -> None:
        while len(self._in_flight) > left:
            self._read(self._in_flight.popleft())

    def _read(self, step: LaunchedStep) -> None:
        """Write the new tokens, find who ends, and turn all of it into events."""
        table = self._table
        result = step.output.get()
        if step.num_drafts is not None:
            alone = len(step.slots) == 1 and self._read_alone(step, int(step.num_drafts[0]), result)
            if not alone:
                self._read_verified(step, step.num_drafts, result)
            return
        slots, at, tokens, logprobs = step.slots, step.at, result.tokens, result.logprobs
        still = table.tenancy[slots] == step.tenancy
        if not still.all():
            kept = np.flatnonzero(still)
            slots, at, tokens = slots[kept], at[kept], tokens[kept]
            logprobs = {new: logprobs[old] for new, old in enumerate(kept.tolist()) if old in logprobs}
        if len(slots) == 0:
            return
        table.token_ids[slots, at] = tokens
        finish, details = self._stop_rules.judge(slots, tokens, at + 1, logprobs)
        request_ids = table.request_ids[slots]
        self._end(slots, finish)
        self._tally.count_output(len(tokens))
        self._events.add_tokens(
            TokenColumns(request_ids=request_ids, token_ids=tokens, finish=finish, details=details)
        )

    def _end(self, slots: npt.NDArray[np.int32], finish: npt.NDArray[np.int8]) -> None:
        for slot in slots[finish != FinishReason.NONE].tolist():
            self._known.discard(int(self._table.request_ids[slot]))
            self._scheduler.finish(slot)

    def _read_alone(self, step: LaunchedStep, drafted: int, result: StepResult) -> bool:
        """As `_read_verified`, of one plain request in numbers; whether it was one, and sound."""
        table = self._table
        slot, accepted = int(step.slots[0]), result.accepted
        if accepted is None or not table.plain[slot]:
            return False
        yielded, taken = result.tokens[0].tolist(), int(accepted[0])
        tokens = yielded[: taken + 1]
        if not 0 <= taken <= drafted or min(tokens) < 0 or max(yielded[taken + 1 :], default=-1) >= 0:
            return False
        at, count = int(step.at[0]), len(tokens)
        kept, finish = self._stop_rules.judge_plain(slot, tokens, at)
        table.token_ids[slot, at : at + count] = tokens
        table.computed[slot] -= drafted - taken
        table.total_len[slot] = at + kept
        self._tally.count_one_verified(at + drafted, drafted=drafted, accepted=taken)
        self._tally.count_output(kept)
        self._tally.count_truncated(count - kept)
        self._events.add_tokens(
            TokenColumns(
                request_ids=table.request_ids[step.slots],
                token_ids=result.tokens[0, :kept],
                finish=np.array([finish], dtype=np.int8),
                counts=np.array([kept], dtype=np.int32),
                drafted=step.num_drafts,
                accepted=accepted,
            )
        )
        if finish is not FinishReason.NONE:
            self._end(step.slots, np.array([finish], dtype=np.int8))
        return True

    def _read_verified(self, step: LaunchedStep, drafted: npt.NDArray[np.int32], result: StepResult) -> None:
        """As `_read`, of a step that yields several tokens per request and was read before the next plan."""
        table, slots, at = self._table, step.slots, step.at
        counts, accepted = check_verification(result, drafted)
        if len(slots) == 0:
            return
        row, column = np.nonzero(result.tokens >= 0)
        tokens = result.tokens[row, column]
        first = np.cumsum(counts) - counts
        logprobs = {int(first[row]): scored for row, scored in result.logprobs.items()}
        ends, details = self._stop_rules.judge(slots[row], tokens, at[row] + column + 1, logprobs)
        kept, finish = cut_behind_end(ends, row, first, counts)
        emitted = column < kept[row]
        table.token_ids[slots[row], at[row] + column] = tokens
        table.computed[slots] -= drafted - accepted  # the keys of rejected drafts are written over
        table.total_len[slots] = at + kept
        request_ids = table.request_ids[slots]
        self._tally.count_verified(at + drafted, drafted, accepted)
        self._tally.count_output(int(kept.sum()))
        self._tally.count_truncated(int(counts.sum() - kept.sum()))
        self._events.add_tokens(
            TokenColumns(
                request_ids=request_ids,
                token_ids=tokens[emitted],
                finish=finish,
                counts=kept,
                drafted=drafted,
                accepted=accepted,
                details={int(row[at_token]): detail for at_token, detail in details.items()},
            )
        )
        self._end(slots, finish)
