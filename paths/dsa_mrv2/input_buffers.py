"""What a V2 step sends, and what its preparation ops write beside the model's static inputs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from paths.dsa_mrv2.staged_writes import StagedWrites
from paths.dsa_mrv2.states import RequestStates
from paths.engine.host_memory import HostRing
from paths.engine.sampler import SamplingInputs
from paths.engine.sampling_head import ForbiddenTokens
from paths.engine.scheduler import StepPlan
from paths.engine.static_inputs import StaticInputs


@dataclass(frozen=True, kw_only=True)
class StepRows:
    """A step on the device: R batch rows in plan order, of which the first N yield a token."""

    slots: Tensor  # [R] int32
    query_start: Tensor  # [R + 1] int32: first token of each row, non-decreasing
    logits_start: Tensor  # [R + 1] int32: first of its logits rows
    counts: Tensor  # [R] int32: tokens that the row yields where none of its drafts is accepted
    writes: Tensor | None = None  # [M, 3] int32 of `apply_writes`, and its values int32
    values: Tensor | None = None
    forbidden_rows: Tensor | None = None  # int32 of `mask_tokens`
    forbidden_tokens: Tensor | None = None


class InputBuffers:
    """Of the rows whose logits are wanted; filled on the device, a step uses the first N entries."""

    def __init__(self, *, max_rows: int, device: torch.device, mtp: int = 0) -> None:
        def filled(dtype: torch.dtype, value: int = 0) -> Tensor:
            return torch.full((max_rows * (1 + mtp),), value, dtype=dtype, device=device)

        self.logits_rows = filled(torch.int64)
        self.logits_slots = filled(torch.int32)
        self.next_positions = filled(torch.int64)
        self.draft_ids = filled(torch.int64, -1)
        # of each batch row; rows that yield none keep old ones
        self.yielded = torch.zeros(max_rows, 2 + mtp, dtype=torch.int64, device=device)
        self.sampled, self.num_sampled = self.yielded[:, :-1], self.yielded[:, -1]
        self.counts = torch.zeros(max_rows, dtype=torch.int32, device=device)


@dataclass(frozen=True, kw_only=True)
class StepViews:
    """Of every buffer what a step uses: T tokens, R rows of which the first N yield, L logits rows."""

    positions: Tensor  # [T], as the four below
    req_rows: Tensor
    lengths: Tensor
    input_ids: Tensor
    slot_mapping: Tensor
    seq_lens: Tensor  # [R]
    block_table: Tensor  # [R, max_blocks]
    logits_rows: Tensor  # [L], as the three below
    logits_slots: Tensor
    next_positions: Tensor
    draft_ids: Tensor
    yielded: Tensor  # [N, 2 + mtp]
    sampled: Tensor  # [N, 1 + mtp]
    first: Tensor  # [N] of `sampled`
    num_sampled: Tensor  # [N] of them, accepted drafts and one
    sampled_rows: Tensor  # [R, 1 + mtp]
    counts: Tensor  # [R]
    greedy: SamplingInputs  # of a step in which nothing is drawn
    drawn: SamplingInputs


class ViewCache:
    """Views of the inputs, of which decode steps need few kinds: taking one costs as much as a small op."""

    def __init__(self, inputs: StaticInputs, buffers: InputBuffers, states: RequestStates) -> None:
        self._inputs, self._buffers, self._states = inputs, buffers, states
        self._kept: dict[tuple[int, int, int], StepViews] = {}

    def of(self, plan: StepPlan) -> StepViews:
        tokens, requests, count = plan.total_tokens, len(plan.slots), plan.num_samples
        if plan.shape.query_len is None or count != requests:
            return self._make(tokens, requests, count, num_logits=_num_logits(plan))
        return self.of_uniform(tokens, requests, num_logits=count if plan.num_drafts is None else tokens)

    def of_uniform(self, tokens: int, requests: int, *, num_logits: int) -> StepViews:
        """Of a step in which every request has as many tokens and yields one or more."""
        kind = (tokens, requests, num_logits)
        views = self._kept.get(kind)
        if views is None:
            views = self._kept[kind] = self._make(tokens, requests, requests, num_logits=num_logits)
        return views

    def _make(self, tokens: int, requests: int, count: int, *, num_logits: int) -> StepViews:
        inputs, buffers, states = self._inputs, self._buffers, self._states
        logits_slots, next_positions = buffers.logits_slots[:num_logits], buffers.next_positions[:num_logits]
        drawn = SamplingInputs(
            temperature=states.temperature,
            top_k=states.top_k,
            top_p=states.top_p,
            seeds=states.seeds,
            positions=next_positions,
            all_greedy=False,
            rows=logits_slots,
        )
        return StepViews(
            positions=inputs.positions[:tokens],
            req_rows=inputs.req_rows[:tokens],
            lengths=inputs.lengths[:tokens],
            input_ids=inputs.input_ids[:tokens],
            slot_mapping=inputs.slot_mapping[:tokens],
            seq_lens=inputs.seq_lens[:requests],
            block_table=inputs.block_table[:requests],
            logits_rows=buffers.logits_rows[:num_logits],
            logits_slots=logits_slots,
            next_positions=next_positions,
            draft_ids=buffers.draft_ids[:num_logits],
            yielded=buffers.yielded[:count],
            sampled=buffers.sampled[:count],
            first=buffers.sampled[:count, 0],
            num_sampled=buffers.num_sampled[:count],
            sampled_rows=buffers.sampled[:requests],
            counts=buffers.counts[:requests],
            greedy=replace(drawn, all_greedy=True),
            drawn=drawn,
        )


def _num_logits(plan: StepPlan) -> int:
    """Rows whose logits are wanted."""
    return plan.num_samples if plan.num_drafts is None else int(plan.num_logits.sum())


def send_step(plan: StepPlan, writes: StagedWrites, forbidden: ForbiddenTokens, ring: HostRing) -> StepRows:
    """Everything that the device must be told of a step, in one copy."""
    parts = list(_rows(plan))
    if writes:
        parts += writes.parts()
    if forbidden:
        parts += [forbidden.rows, forbidden.tokens]
    slots, query_start, logits_start, counts, *rest = ring.send(parts)
    sent_writes = [rest.pop(0), rest.pop(0)] if writes else [None, None]
    sent_forbidden = rest if forbidden else [None, None]
    return StepRows(
        slots=slots,
        query_start=query_start,
        logits_start=logits_start,
        counts=counts,
        writes=sent_writes[0],
        values=sent_writes[1],
        forbidden_rows=sent_forbidden[0],
        forbidden_tokens=sent_forbidden[1],
    )


@lru_cache(maxsize=1024)
def _uniform_rows(count: int, query_len: int, num_logits: int) -> tuple[npt.NDArray[np.int32], ...]:
    """Of a step in which every request decodes: what `_rows` makes, made once."""
    rows = np.arange(count + 1, dtype=np.int32)
    return rows * np.int32(query_len), rows * np.int32(num_logits), np.ones(count, dtype=np.int32)


def _rows(plan: StepPlan) -> tuple[npt.NDArray[np.int32], ...]:
    count, wanted, query_len = len(plan.slots), plan.num_samples, plan.shape.query_len
    if query_len is not None and wanted == count:
        drafts = query_len if plan.num_drafts is not None else 1
        return plan.slots, *_uniform_rows(count, query_len, drafts)
    query_start = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(plan.num_tokens, out=query_start[1:])
    logits_start = np.minimum(np.arange(count + 1, dtype=np.int32), wanted)
    if plan.num_drafts is not None:
        logits_start[wanted:] = plan.num_logits.sum()
        np.cumsum(plan.num_logits[:-1], out=logits_start[1:wanted])
    counts = (np.arange(count) < wanted).astype(np.int32)
    return plan.slots, query_start, logits_start, counts
