"""Drafts of runner V1: inputs built on the host before each one, drafts read once behind the last."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from paths.engine.batch import PAGE_SIZE
from paths.engine.host_memory import HostStaging
from paths.engine.runner import Model
from paths.engine.scheduler import StepPlan
from paths.engine.speculation import DraftRows, draft_token
from paths.generic_mrv1.input_batch import InputBatch
from paths.generic_mrv1.sampling_buffers import SamplingBuffers
from paths.graphs.drafts import GraphedDrafts
from paths.graphs.shape import BatchShape
from paths.kernels.registry import Kernels

IntArray = npt.NDArray[np.int32]


class DrafterV1:
    """Runs the MTP head behind a step and keeps what it drafts, by row of the batch, until it is verified."""

    def __init__(
        self,
        *,
        model: Model,
        drafts: GraphedDrafts,
        kernels: Kernels,
        batch: InputBatch,
        sampling: SamplingBuffers,
        staging: HostStaging,
    ) -> None:
        self._model = model
        self._drafts = drafts
        drafts.follow_greedy()
        self._kernels = kernels
        self._batch = batch
        self._sampling = sampling
        self._staging = staging
        self._inputs = drafts.inputs
        self._mtp = batch.draft_ids.shape[1] - 1
        slots = len(batch.row_of_slot)
        device = self._inputs.device
        self._draft_ids = torch.zeros(slots * (1 + self._mtp), dtype=torch.int64, device=device)
        self._starts = torch.zeros(slots + 1, dtype=torch.int32, device=device)
        self._sent_counts = b""  # logits rows of each request that `_starts` belong to
        self._slots = torch.zeros(slots, dtype=torch.int64, device=device)
        self._probs: Tensor | None = None  # [S, mtp, V] by slot: 0 bytes while every request is greedy

    def rows_to_verify(self, plan: StepPlan, rows: IntArray, *, all_greedy: bool) -> DraftRows:
        """The drafts that this step judges; rows `[N]` of the batch."""
        count, num_logits, send = plan.num_samples, plan.num_logits, self._staging.send
        counts = num_logits.tobytes()
        if counts != self._sent_counts:
            starts = np.zeros(count + 1, dtype=np.int32)
            np.cumsum(num_logits, out=starts[1:])
            self._staging.put("draft_starts", starts, self._starts)
            self._sent_counts = counts
        probs = None
        if self._probs is not None and not all_greedy:
            probs = self._probs[send("draft_slots", plan.slots[:count], self._slots)]
        return DraftRows(
            ids=send("draft_ids", self._judged(rows, num_logits), self._draft_ids),
            starts=self._staging.rows(self._starts, count + 1),
            probs=probs,
        )

    def _judged(self, rows: IntArray, num_logits: IntArray) -> IntArray:
        """Drafts of the rows `[N]` and −1 behind each row's last, for all its logits: `[L]`."""
        all_ids = self._batch.draft_ids
        drafts: IntArray = all_ids[rows[0] : rows[0] + 1] if len(rows) == 1 else all_ids[rows]
        if sum(num_logits.tolist()) == drafts.size:
            return drafts.reshape(-1)
        number = np.arange(1 + self._mtp)
        judged: IntArray = np.where(number < num_logits[:, None] - 1, drafts, -1)
        return judged[number < num_logits[:, None]]

    @torch.inference_mode()
    def propose(self, plan: StepPlan, hidden: Tensor, *, rejected: IntArray, limits: IntArray) -> None:
        """Draft behind the tokens of this step, which the batch has; hidden `[T, Dm]` of its rows.

        rejected `[N]`: drafts that were not accepted; their rows stay in place and are made padding, so that
        draft 0 has the shape of the step. limits `[N]`: tokens that each request may come to.
        """
        count = plan.num_samples
        slots = plan.slots[:count]
        rows = self._batch.row_of_slot[slots]
        greedy = count > 0 and not any(self._batch.temperature[rows].tolist())
        if greedy and len(plan.slots) == 1:
            self._propose_one(plan, int(rows[0]), hidden, rejected=int(rejected[0]), limit=int(limits[0]))
            return
        self._prepare_first(plan, rejected)
        self._inputs.hidden[: len(hidden)].copy_(hidden)
        if count == 0:
            self._drafts.run(0, plan.shape)
            return
        position = (plan.start + plan.num_tokens)[:count] - rejected - 1
        tokens, shape = [], plan.shape
        for step in range(self._mtp):
            if step > 0:
                shape = self._prepare_later(step, rows, position + step, limits)
            if greedy:
                tokens.append(self._drafts.run(step, shape)[0][:count].clone())
            else:
                tokens.append(self._draw(step, shape, slots, rows, position + step))
        self._batch.draft_ids[rows, :-1] = self._staging.read(torch.cat(tokens, dim=1))

    def _propose_one(self, plan: StepPlan, row: int, hidden: Tensor, *, rejected: int, limit: int) -> None:
        """As `propose`, of a single greedy request: slices of what is there, and only what has changed."""
        end = int(plan.start[0]) + plan.total_tokens - rejected
        self._prepare_first_of_one(plan, row, rejected, end)
        self._staging.rows(self._inputs.hidden, len(hidden)).copy_(hidden)
        tokens = [self._drafts.run(0, plan.shape)[0].clone()]
        for step in range(1, self._mtp):
            shape = self._prepare_later_of_one(step, row, end - 1 + step, limit)
            tokens.append(self._drafts.run(step, shape)[0].clone())
        self._batch.draft_ids[row, :-1] = self._staging.read(torch.cat(tokens, dim=1))

    def _prepare_first_of_one(self, plan: StepPlan, row: int, rejected: int, end: int) -> None:
        """end: position behind the last live row. Where nothing was rejected, most inputs are the step's."""
        batch, inputs, count = self._batch, self._inputs, plan.total_tokens
        start, live = end - (count - rejected), count - rejected
        numbers = batch.numbers
        ids: npt.NDArray[Any] = batch.token_ids[row, start + 1 : end + 1]
        if rejected:
            ids, slots, lengths = (np.full(count, value, dtype=np.int64) for value in (0, -1, 0))
            ids[:live] = batch.token_ids[row, start + 1 : end + 1]
            slots[:live] = batch.slots(row, start, end)
            lengths[:live] = numbers[start + 1 : end + 1]
            self._send("slot_mapping", 0, slots, inputs.slot_mapping)
            self._send("lengths", 0, lengths, inputs.lengths)
        self._send("input_ids", 0, ids, inputs.input_ids)
        self._send("last_rows", 0, numbers[live - 1 : live], inputs.last_rows)
        self._send("last_positions", 0, numbers[end - 1 : end], inputs.last_positions)
        self._send("last_lengths", 0, numbers[end : end + 1], inputs.last_lengths)

    def _prepare_later_of_one(self, step: int, row: int, position: int, limit: int) -> BatchShape:
        """Its row is the first of the batch, as in the step."""
        live, numbers, inputs = position < limit, self._batch.numbers, self._inputs
        if live:
            slots = self._batch.slots(row, position, position + 1)
        else:
            position, slots = 0, np.full(1, -1)
        length = position + 1 if live else 0
        self._send("positions", step, numbers[position : position + 1], inputs.positions)
        self._send("slot_mapping", step, slots, inputs.slot_mapping)
        self._send("lengths", step, numbers[length : length + 1], inputs.lengths)
        return BatchShape(num_tokens=1, num_reqs=1, query_len=1, max_length=length)

    def _prepare_first(self, plan: StepPlan, rejected: IntArray) -> None:
        """Ids shifted by one against the step's, and the last live row of each request that drafts."""
        count, rows = plan.num_samples, self._batch.row_of_slot[plan.slots]
        ends = np.cumsum(plan.num_tokens, dtype=np.int32)
        live_ends = ends.copy()
        live_ends[:count] -= rejected
        req = np.repeat(np.arange(len(rows)), plan.num_tokens)
        token = np.arange(plan.total_tokens)
        positions = (plan.start - ends + plan.num_tokens)[req] + token
        live = token < live_ends[req]
        following = np.where(live, positions + 1, 0)
        ids = np.where(live, self._batch.token_ids[rows[req], following], 0)
        blocks = self._batch.block_table[rows[req], positions // PAGE_SIZE].astype(np.int64)
        slots = np.where(live, blocks * PAGE_SIZE + positions % PAGE_SIZE, -1)
        inputs = self._inputs
        self._send("input_ids", 0, ids, inputs.input_ids)
        self._send("slot_mapping", 0, slots, inputs.slot_mapping)
        self._send("lengths", 0, following, inputs.lengths)
        last = np.where(np.arange(len(rows)) < count, live_ends - 1, 0)
        lengths = np.where(np.arange(len(rows)) < count, following[last], 0)
        self._send("last_rows", 0, last, inputs.last_rows)
        self._send("last_positions", 0, np.maximum(lengths - 1, 0), inputs.last_positions)
        self._send("last_lengths", 0, lengths, inputs.last_lengths)

    def _prepare_later(self, step: int, rows: IntArray, positions: IntArray, limit: IntArray) -> BatchShape:
        """One row per request; those past their limit are padding, and what they draft is not used."""
        live = positions < limit
        positions = np.where(live, positions, 0)
        blocks = self._batch.block_table[rows, positions // PAGE_SIZE].astype(np.int64)
        lengths = np.where(live, positions + 1, 0)
        slots = np.where(live, blocks * PAGE_SIZE + positions % PAGE_SIZE, -1)
        inputs = self._inputs
        self._send("positions", step, positions, inputs.positions)
        self._send("slot_mapping", step, slots, inputs.slot_mapping)
        self._send("lengths", step, lengths, inputs.lengths)
        if step == 1:  # behind it they stay
            self._send("req_rows", step, np.arange(len(rows), dtype=np.int32), inputs.req_rows)
        return BatchShape(
            num_tokens=len(rows), num_reqs=len(rows), query_len=1, max_length=int(lengths.max())
        )

    def _send(self, name: str, step: int, values: np.ndarray, out: Tensor) -> None:
        """From memory of this draft's own: the copies of the one before may still be under way."""
        self._staging.put(f"{name} of draft {step}", values, out)

    def _draw(
        self, step: int, shape: BatchShape, slots: IntArray, rows: IntArray, position: IntArray
    ) -> Tensor:
        """Draft `step` int64 `[N, 1]` of the rows at `position`; keeps what it was drawn from."""
        count = len(rows)
        self._drafts.run(step, shape)
        logits = self._model.draft_logits(self._inputs.hidden[:count], step=step)
        sampling = self._sampling.inputs(self._batch, rows, positions=position + 2, draft=step)
        token, probs = draft_token(logits, sampling, self._kernels)
        assert probs is not None, "not all are greedy"
        if self._probs is None:
            self._probs = probs.new_zeros(len(self._slots), self._mtp, probs.shape[1])
        self._probs[self._staging.send(f"slots of draft {step}", slots, self._slots), step] = probs
        self._inputs.input_ids[:count].copy_(token)
        return token[:, None]
