"""Continuous batching: which requests run in the next step, with how many tokens, on which pages."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from paths.engine.batch import PAGE_SIZE
from paths.engine.kv_cache import BlockPool, pages_for
from paths.engine.requests import RequestState, RequestTable, output_limit
from paths.graphs.shape import BatchShape

IntArray = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """One step: R requests, decode rows first. Request r computes tokens [start, start + num_tokens).

    The first N requests yield tokens. At most the last does not: only it can be cut short. The last
    num_drafts[r] of a request's tokens are drafts, to be verified.
    """

    slots: IntArray  # [R]
    start: IntArray  # [R]
    num_tokens: IntArray  # [R]
    num_samples: int  # N
    num_drafts: IntArray | None = None  # [R]; None: no request verifies drafts in this step
    admitted: tuple[int, ...]  # slots that joined the running set for this step
    released: tuple[int, ...]  # slots that left it since the last plan (finished, aborted, preempted)
    grown: IntArray  # slots whose block table got new pages
    mtp: int = 0  # drafts that a request has verified in most steps

    @cached_property
    def total_tokens(self) -> int:
        return sum(self.num_tokens.tolist())  # of few numbers faster than an array's sum

    @cached_property
    def num_logits(self) -> IntArray:
        """[N] rows whose logits are wanted, the last ones of each request."""
        if self.num_drafts is None:
            return np.ones(self.num_samples, dtype=np.int32)
        return 1 + self.num_drafts[: self.num_samples]

    @cached_property
    def shape(self) -> BatchShape:
        """What decides on the graph."""
        return BatchShape(
            num_tokens=self.total_tokens,
            num_reqs=len(self.slots),
            query_len=self._query_len(),
            max_length=max((self.start + self.num_tokens).tolist()),
        )

    def _query_len(self) -> int | None:
        """Tokens per request where all decode: one, or one and `mtp` drafts. Fewer are a mixed batch."""
        count = len(self.slots)
        if self.num_drafts is None:
            return 1 if self.total_tokens == count else None
        if self.total_tokens != count * (1 + self.mtp) or self.num_drafts.tolist().count(self.mtp) != count:
            return None
        return 1 + self.mtp


class Scheduler:
    """Decode first, then prefills in progress, then new requests, within a token budget.

    When pages run out, the youngest running request is preempted: its pages are freed and its tokens are
    recomputed later. The oldest request can always run, since `add` refuses what exceeds the whole pool.

    mtp: drafts that follow a step. A decode row is scheduled with its drafts, as many as its length limit
    leaves room for, so that all of them may be accepted. Where the budget cannot hold those of every row and
    as much for each request that could join, all have fewer: who waits for others' drafts would be slower
    than without any.
    """

    def __init__(
        self, *, table: RequestTable, pool: BlockPool, max_num_batched_tokens: int, mtp: int = 0
    ) -> None:
        self.mtp = mtp
        self.table = table
        self.pool = pool
        self.max_num_batched_tokens = max_num_batched_tokens
        self.waiting: deque[RequestState] = deque()
        self.preemptions = 0
        self._released: list[int] = []

    def has_work(self) -> bool:
        return bool(self.waiting) or bool(self.table.live.any())

    def finish(self, slot: int) -> RequestState:
        """Take a request out of the running set and free its pages."""
        table = self.table
        self.pool.give_back(table.block_table[slot, : table.num_blocks[slot]])
        self._released.append(slot)
        return table.release(slot)

    def plan(self, *, may_preempt: bool = True) -> StepPlan | None:
        """Decide the next step. Empty when nothing can run; None where it takes a preemption that may not be.

        Of a request that is preempted every token must be known: steps in flight are read before.
        """
        preempted_before = self.preemptions
        running = self._alone() or self._running(may_preempt=may_preempt)
        if running is None:
            return None
        slots, counts, drafts, grown = running
        budget = self.max_num_batched_tokens - sum(counts.tolist())
        if self.preemptions > preempted_before:
            budget = 0  # admit nobody: the victim would take its pages straight back
        admitted, new_counts = self._admit(budget)
        if admitted:
            slots = np.concatenate([slots, np.asarray(admitted, dtype=np.int32)])
            counts = np.concatenate([counts, np.asarray(new_counts, dtype=np.int32)])
            drafts = np.concatenate([drafts, np.zeros(len(admitted), dtype=np.int32)])
            grown = np.concatenate([grown, np.asarray(admitted, dtype=np.int32)])
        start = self.table.computed[slots]
        released = tuple(self._released)
        if len(slots):
            self._released.clear()  # an empty plan is not executed: its news waits for the next one
        return StepPlan(
            slots=slots,
            start=start,
            num_tokens=counts,
            num_samples=self._num_samples(slots, start + counts - drafts),
            num_drafts=drafts if any(drafts.tolist()) else None,
            mtp=self.mtp,
            admitted=tuple(admitted),
            released=released,
            grown=grown,
        )

    def _num_samples(self, slots: IntArray, ends: IntArray) -> int:
        complete = (ends == self.table.total_len[slots]).tolist()
        if not all(complete[:-1]):
            raise RuntimeError("a request before the last of a step was cut short")
        return sum(complete)

    def _running(self, *, may_preempt: bool) -> tuple[IntArray, IntArray, IntArray, IntArray] | None:
        """Slots, token and draft counts and grown slots of the running requests that fit into this step."""
        table = self.table
        while True:
            # one whose last token is still in flight has nothing left to compute
            slots = np.flatnonzero(table.live & (table.total_len < table.max_total)).astype(np.int32)
            pending = table.total_len[slots] - table.computed[slots]
            # decode rows first, then prefills, oldest first in both
            if len(slots) > 1:
                order = np.lexsort((table.arrival[slots], pending > 1))
                slots, pending = slots[order], pending[order]
            known = pending
            pending = known + self._drafts(slots, known) if self.mtp else known
            before = np.cumsum(pending, dtype=np.int64) - pending
            counts = np.minimum(np.maximum(self.max_num_batched_tokens - before, 0), pending).astype(np.int32)
            drafts = np.maximum(counts - known, 0)
            chosen = counts > 0
            if not chosen.all():
                slots, counts, drafts = slots[chosen], counts[chosen], drafts[chosen]
            need = np.maximum(self._pages(slots, counts) - table.num_blocks[slots], 0)
            if int(need.sum()) <= self.pool.free:
                grown = slots[need > 0]
                if len(grown):
                    self._grow(grown, need[need > 0])
                return slots, counts, drafts, grown
            if not may_preempt:
                return None
            self._preempt_youngest()

    def _alone(self) -> tuple[IntArray, IntArray, IntArray, IntArray] | None:
        """As `_running`, in numbers: what arrays cost is felt where a step has one request.

        None where several requests run or others wait, or the only one can compute nothing or finds no pages.
        """
        table = self.table
        if table.num_live != 1 or self.waiting:
            return None
        slot = int(table.live.argmax())
        total, limit = int(table.total_len[slot]), int(table.max_total[slot])
        computed, budget = int(table.computed[slot]), self.max_num_batched_tokens
        if total >= limit or total == computed:
            return None
        known = total - computed
        drafts = max(min(int(table.num_drafts[slot]), limit - total - 1, budget - 1), 0) if self.mtp else 0
        count = min(known + drafts, budget)
        end = computed + count
        if self.mtp > 1:
            end = min(end + self.mtp - 1, limit)
        need = pages_for(end) - int(table.num_blocks[slot])
        if need > self.pool.free:
            return None
        slots = np.array([slot], dtype=np.int32)
        if need > 0:
            self._grow(slots, np.array([need], dtype=np.int32))
        return (
            slots,
            np.array([count], dtype=np.int32),
            np.array([max(count - known, 0)], dtype=np.int32),
            slots if need > 0 else slots[:0],
        )

    def _drafts(self, slots: IntArray, known: IntArray) -> IntArray:
        """Drafts to verify of each running request; beside them a verification yields one more token.

        known `[R]`: tokens that each has to compute anyway, more than one while its prompt is read.
        """
        table = self.table
        left = table.max_total[slots] - table.total_len[slots] - 1
        wanted = np.maximum(np.minimum(table.num_drafts[slots], left), 0)
        plain = int(((wanted == 0) & (known == 1)).sum())
        joining = min(len(self.waiting), table.free_slots)
        shares = max(len(slots) - plain + joining, 1)
        most = (self.max_num_batched_tokens - plain) // shares - 1
        return np.minimum(wanted, max(most, 0))

    def _pages(self, slots: IntArray, counts: IntArray) -> IntArray:
        """Pages that hold the step's tokens, and those that are drafted behind them."""
        ends = self.table.computed[slots] + counts
        if self.mtp > 1:
            # draft j is made at the position of draft j − 1, whose keys are written; none past the limit
            ends = np.minimum(ends + self.mtp - 1, self.table.max_total[slots])
        return -(-ends // PAGE_SIZE)

    def _grow(self, slots: IntArray, need: IntArray) -> None:
        table = self.table
        blocks = self.pool.take(int(need.sum()))
        rows = np.repeat(slots, need)
        within = np.arange(len(blocks)) - np.repeat(np.cumsum(need) - need, need)
        table.block_table[rows, table.num_blocks[rows] + within] = blocks
        table.num_blocks[slots] += need

    def _preempt_youngest(self) -> None:
        live = np.flatnonzero(self.table.live)
        if len(live) <= 1:
            raise RuntimeError("a single request does not fit into the KV cache; `add` must refuse it")
        victim = int(live[np.argmax(self.table.arrival[live])])
        self.waiting.appendleft(self.finish(victim))
        self.preemptions += 1

    def _admit(self, budget: int) -> tuple[list[int], list[int]]:
        """Move waiting requests into slots while slots, pages and budget last."""
        admitted: list[int] = []
        counts: list[int] = []
        while self.waiting and budget > 0 and self.table.free_slots:
            state = self.waiting[0]
            known = len(state.request.prompt_ids) + len(state.output_ids)
            # room for all known tokens, so that a request is not admitted only to be preempted at once
            limit = len(state.request.prompt_ids) + output_limit(state.request)
            if pages_for(min(known + max(self.mtp - 1, 0), limit)) > self.pool.free:
                break
            self.waiting.popleft()
            slot = self.table.admit(state)
            count = min(known, budget)
            slots = np.asarray([slot], dtype=np.int32)
            self._grow(slots, self._pages(slots, np.asarray([count], dtype=np.int32)))
            admitted.append(slot)
            counts.append(count)
            budget -= count
        return admitted, counts
