"""What a V1 step reads, built on the host with numpy and copied into the static inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from paths.engine.batch import PAGE_SIZE
from paths.engine.host_memory import HostStaging
from paths.engine.scheduler import StepPlan
from paths.engine.static_inputs import StaticInputs
from paths.generic_mrv1.input_batch import InputBatch

IntArray = npt.NDArray[np.int32]


class StepInputs:
    """Fills the static inputs of a step. Of a single request it builds slices, and sends what has changed."""

    def __init__(self, inputs: StaticInputs, batch: InputBatch, staging: HostStaging) -> None:
        self._inputs, self._batch, self._staging = inputs, batch, staging
        self._zero_rows = 0  # first entries of `req_rows` that are known to be 0
        self._sent_blocks: tuple[int, int] | None = None  # version of the batch and row: block table of row 0

    def prepare(self, plan: StepPlan) -> None:
        """Everything that the forward pass reads."""
        if len(plan.slots) == 1:
            self._prepare_one(plan)
        else:
            self._prepare_many(plan)

    def _prepare_one(self, plan: StepPlan) -> None:
        batch, inputs, put = self._batch, self._inputs, self._staging.put
        row, start, count = int(batch.row_of_slot[plan.slots[0]]), int(plan.start[0]), plan.total_tokens
        end, numbers = start + count, batch.numbers
        ids = batch.token_ids[row, start:end]
        drafts = 0 if plan.num_drafts is None else int(plan.num_drafts[0])
        if drafts:
            ids = ids.copy()
            ids[count - drafts :] = batch.draft_ids[row, :drafts]
        put("input_ids", ids, inputs.input_ids)
        put("positions", numbers[start:end], inputs.positions)
        put("slot_mapping", batch.slots(row, start, end), inputs.slot_mapping)
        put("lengths", numbers[start + 1 : end + 1], inputs.lengths)
        if count > self._zero_rows:
            put("req_rows", np.zeros(count, dtype=np.int32), inputs.req_rows)
            self._zero_rows = count
        blocks = (batch.version, row)
        if len(plan.grown) or blocks != self._sent_blocks:
            put("block_table", batch.block_table[row : row + 1], inputs.block_table)
            self._sent_blocks = blocks

    def _prepare_many(self, plan: StepPlan) -> None:
        rows = self._batch.row_of_slot[plan.slots]
        block_table = self._batch.block_table[rows]
        req = np.repeat(np.arange(len(rows), dtype=np.int32), plan.num_tokens)
        first = np.cumsum(plan.num_tokens) - plan.num_tokens
        positions = (plan.start - first)[req] + np.arange(plan.total_tokens)
        slots = block_table[req, positions // PAGE_SIZE].astype(np.int64) * PAGE_SIZE + positions % PAGE_SIZE
        inputs, put = self._inputs, self._staging.put
        put("input_ids", self._input_ids(plan, rows, req, positions), inputs.input_ids)
        put("positions", positions, inputs.positions)
        put("slot_mapping", slots, inputs.slot_mapping)
        put("lengths", positions + 1, inputs.lengths)
        put("req_rows", req, inputs.req_rows)
        put("block_table", block_table, inputs.block_table)
        self._zero_rows, self._sent_blocks = 0, None

    def _input_ids(
        self, plan: StepPlan, rows: IntArray, req: IntArray, positions: npt.NDArray[Any]
    ) -> IntArray:
        """Known tokens, and drafts where they end."""
        ids: IntArray = self._batch.token_ids[rows[req], positions]
        if plan.num_drafts is not None:
            known = plan.start + plan.num_tokens - plan.num_drafts
            number = positions - known[req]
            drafts = np.flatnonzero((number >= 0) & (plan.num_drafts[req] > 0))
            ids[drafts] = self._batch.draft_ids[rows[req[drafts]], number[drafts]]
        return ids
