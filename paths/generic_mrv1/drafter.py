"""Drafts of runner V1: inputs built on the host before each one, drafts read once behind the last."""

from __future__ import annotations

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
        self._kernels = kernels
        self._batch = batch
        self._sampling = sampling
        self._staging = staging
        self._inputs = drafts.inputs
        self._mtp = batch.draft_ids.shape[1]
        slots = len(batch.row_of_slot)
        device = self._inputs.device
        self._draft_ids = torch.zeros(slots * (1 + self._mtp), dtype=torch.int64, device=device)
        self._starts = torch.zeros(slots + 1, dtype=torch.int32, device=device)
        self._slots = torch.zeros(slots, dtype=torch.int64, device=device)
        self._probs: Tensor | None = None  # [S, mtp, V] by slot: 0 bytes while every request is greedy

    def rows_to_verify(self, plan: StepPlan, starts: IntArray, *, all_greedy: bool) -> DraftRows:
        """The drafts that this step judges; starts `[N + 1]`: first logits row of each request."""
        count = plan.num_samples
        rows = self._batch.row_of_slot[plan.slots[:count]]
        ids = np.full(starts[-1], -1, dtype=np.int32)
        num_drafts = plan.num_logits - 1
        req = np.repeat(np.arange(count), num_drafts)
        number = np.arange(len(req)) - np.repeat(np.cumsum(num_drafts) - num_drafts, num_drafts)
        ids[starts[req] + number] = self._batch.draft_ids[rows[req], number]
        send = self._staging.send
        probs = None
        if self._probs is not None and not all_greedy:
            probs = self._probs[send("draft_slots", plan.slots[:count], self._slots)]
        return DraftRows(
            ids=send("draft_ids", ids, self._draft_ids),
            starts=send("draft_starts", starts, self._starts),
            probs=probs,
        )

    @torch.inference_mode()
    def propose(self, plan: StepPlan, hidden: Tensor, *, rejected: IntArray, limits: IntArray) -> None:
        """Draft behind the tokens of this step, which the batch has; hidden `[T, Dm]` of its rows.

        rejected `[N]`: drafts that were not accepted; their rows stay in place and are made padding, so that
        draft 0 has the shape of the step. limits `[N]`: tokens that each request may come to.
        """
        count = plan.num_samples
        self._prepare_first(plan, rejected)
        self._inputs.hidden[: len(hidden)].copy_(hidden)
        states, _ = self._drafts.run(0, plan.shape)
        if count == 0:
            return
        slots = plan.slots[:count]
        rows = self._batch.row_of_slot[slots]
        position = (plan.start + plan.num_tokens)[:count] - rejected - 1
        states = states[:count]
        tokens = [self._draft(0, states, slots, rows, position)]
        for step in range(1, self._mtp):
            shape = self._prepare_later(step, rows, position + step, limits)
            self._inputs.input_ids[:count].copy_(tokens[-1])
            self._inputs.hidden[:count].copy_(states)
            states, _ = self._drafts.run(step, shape)
            tokens.append(self._draft(step, states, slots, rows, position + step))
        self._batch.draft_ids[rows] = self._staging.read(torch.stack(tokens, dim=1))

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

    def _draft(
        self, step: int, states: Tensor, slots: IntArray, rows: IntArray, position: IntArray
    ) -> Tensor:
        """Draft `step` int64 `[N]` of the rows at `position`; keeps what it was drawn from."""
        logits = self._model.draft_logits(states, step=step)
        sampling = self._sampling.inputs(self._batch, rows, positions=position + 2, draft=step)
        token, probs = draft_token(logits, sampling, self._kernels)
        if probs is not None:
            if self._probs is None:
                self._probs = probs.new_zeros(len(self._slots), self._mtp, probs.shape[1])
            self._probs[self._staging.send(f"slots of draft {step}", slots, self._slots), step] = probs
        return token
