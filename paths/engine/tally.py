"""An engine's counters: what its parts counted since start-up was over."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from paths.api import Counters
from paths.engine.requests import RequestTable
from paths.engine.runner import Runner
from paths.engine.scheduler import Scheduler, StepPlan
from paths.engine.stats import process_usage
from paths.graphs.forward import GraphCounts

IntArray = npt.NDArray[np.int32]


class Tally:
    """Counts rows and tokens itself and reads the rest where it is counted. `reset` ends start-up."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        runner: Runner,
        graph_counts: GraphCounts,
        recompiles: Callable[[], int],
        index_topk: int,
        mtp: int = 0,
    ) -> None:
        self._mtp = mtp
        self._numbers = np.arange(mtp)
        self._scheduler = scheduler
        self._table: RequestTable = scheduler.table
        self._runner = runner
        self._graph_counts = graph_counts
        self._recompiles = recompiles
        self._index_topk = index_topk
        self.reset()

    def reset(self) -> None:
        self._rows = Counters(accepted_at=[0] * self._mtp, verified_at=[0] * self._mtp)
        self._before = self._read()

    def count(self, plan: StepPlan) -> None:
        """A step, before the table counts it as done."""
        rows, tokens = self._rows, plan.total_tokens
        rows.uniform_steps += int(plan.shape.query_len == 1 + self._mtp)
        rows.tokens_real += tokens
        if len(plan.slots) == 1:
            start, last = int(plan.start[0]), int(plan.start[0]) + tokens
            first = max(start, int(self._table.prompt_len[plan.slots[0]]))
            decode = max(last - first, 0)
            rows.decode_tokens += decode
            rows.prompt_tokens += tokens - decode
            rows.decode_tokens_sparse += max(last - max(first, self._index_topk), 0)
            return
        # a row at or past the prompt's length has an output token as its input; recomputed ones count too
        end = plan.start + plan.num_tokens
        first_decode = np.maximum(plan.start, self._table.prompt_len[plan.slots])
        decode = int(np.maximum(end - first_decode, 0).sum())
        rows.decode_tokens += decode
        rows.prompt_tokens += tokens - decode
        first_sparse = np.maximum(first_decode, self._index_topk)
        rows.decode_tokens_sparse += int(np.maximum(end - first_sparse, 0).sum())

    def count_output(self, tokens: int) -> None:
        self._rows.output_tokens += tokens

    def count_verified(self, ends: IntArray, drafted: IntArray, accepted: IntArray) -> None:
        """Verifications `[N]`, drafted 0 where there was none. ends: tokens behind which the rows ended.

        A row whose input was a rejected draft had no output token as its input, nor a prompt's.
        """
        if len(ends) == 1:
            self.count_one_verified(int(ends[0]), drafted=int(drafted[0]), accepted=int(accepted[0]))
            return
        rows = self._rows
        verified_at = (drafted[:, None] > self._numbers).sum(axis=0).tolist()
        accepted_at = (accepted[:, None] > self._numbers).sum(axis=0).tolist()
        rows.verify_steps += verified_at[0]
        rows.drafted_tokens += sum(verified_at)
        rows.accepted_tokens += sum(accepted_at)
        for number in range(self._mtp):
            rows.verified_at[number] += verified_at[number]
            rows.accepted_at[number] += accepted_at[number]
        rejected = drafted - accepted
        rows.decode_tokens -= int(rejected.sum())
        seen_all = np.maximum(ends - rejected, self._index_topk)
        rows.decode_tokens_sparse -= int(np.maximum(ends - seen_all, 0).sum())

    def count_one_verified(self, end: int, *, drafted: int, accepted: int) -> None:
        """As `count_verified`, of one row in numbers."""
        rows, rejected = self._rows, drafted - accepted
        rows.verify_steps += int(drafted > 0)
        rows.drafted_tokens += drafted
        rows.accepted_tokens += accepted
        for number in range(drafted):
            rows.verified_at[number] += 1
        for number in range(accepted):
            rows.accepted_at[number] += 1
        rows.decode_tokens -= rejected
        rows.decode_tokens_sparse -= max(end - max(end - rejected, self._index_topk), 0)

    def count_truncated(self, tokens: int) -> None:
        """Accepted or sampled behind a stop."""
        self._rows.truncated_tokens += tokens

    def counters(self) -> Counters:
        now, before = self._read(), self._before
        return dataclasses.replace(
            now,
            steps=_difference(now.steps, before.steps),
            graph_misses=_difference(now.graph_misses, before.graph_misses),
            tokens_padded=now.tokens_padded - before.tokens_padded,
            host_device_copies=now.host_device_copies - before.host_device_copies,
            blocking_waits=now.blocking_waits - before.blocking_waits,
            output_waits=now.output_waits - before.output_waits,
            preemptions=now.preemptions - before.preemptions,
            nan_logit_rows=now.nan_logit_rows - before.nan_logit_rows,
            recompiles=now.recompiles - before.recompiles,
            **vars(process_usage()),
        )

    def _read(self) -> Counters:
        return dataclasses.replace(
            self._rows,
            accepted_at=list(self._rows.accepted_at),
            verified_at=list(self._rows.verified_at),
            steps=dict(self._graph_counts.steps),
            graph_misses=dict(self._graph_counts.misses),
            tokens_padded=self._graph_counts.tokens_padded,
            preemptions=self._scheduler.preemptions,
            recompiles=self._recompiles(),
            nan_logit_rows=self._runner.nan_rows(),
            **vars(self._runner.transfers),
        )


def _difference(now: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {name: count - before.get(name, 0) for name, count in now.items()}
