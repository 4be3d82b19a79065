"""Model runner V2: stable slots, state on the device, inputs derived from it by device operations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paths.dsa_mrv2.states import RequestStates
from paths.engine.batch import PAGE_SIZE, ForwardBatch, LayerCache
from paths.engine.requests import RequestTable
from paths.engine.runner import Model, SamplingHead, StepResult
from paths.engine.sampler import SamplingInputs
from paths.engine.scheduler import StepPlan


class RunnerV2:
    """A step sends slots and token counts; positions, ids and slot mapping come from persistent state.

    The block table is passed whole and indexed by slot, so no row is gathered or moved.
    """

    name = "V2"

    def __init__(
        self,
        *,
        model: Model,
        caches: Sequence[LayerCache],
        table: RequestTable,
        eos_token_ids: Sequence[int],
        index_topk: int,
        max_num_batched_tokens: int,
        device: torch.device,
    ) -> None:
        self._model = model
        self._caches = caches
        self._states = RequestStates(table, device)
        self._head = SamplingHead(model, eos_token_ids=eos_token_ids)
        self._topk = torch.full((max_num_batched_tokens, index_topk), -1, dtype=torch.int32, device=device)
        self._arange = torch.arange(max_num_batched_tokens, device=device)
        self._device = device

    def nan_rows(self) -> int:
        return self._head.nan_rows()

    def execute(self, plan: StepPlan, table: RequestTable) -> StepResult:
        states = self._states
        states.apply(plan, table)
        slots = torch.from_numpy(plan.slots).to(self._device)
        counts = torch.from_numpy(plan.num_tokens).to(self._device)
        batch = self._prepare_inputs(plan, slots=slots, counts=counts)
        hidden = self._model.forward(batch, self._caches)
        sampled = slots if plan.samples.all() else slots[torch.from_numpy(plan.samples).to(self._device)]
        states.computed[slots.long()] += counts
        positions = states.computed[sampled.long()]
        result = self._head.run(hidden, plan, table, self._sampling_inputs(sampled, positions, plan, table))
        tokens = torch.from_numpy(result.tokens[plan.samples]).to(self._device)
        states.token_ids[sampled.long(), positions] = tokens
        return result

    def _prepare_inputs(self, plan: StepPlan, *, slots: Tensor, counts: Tensor) -> ForwardBatch:
        states = self._states
        total = plan.total_tokens
        if total == len(plan.slots):  # decode only: one row per request
            rows = slots
            positions = states.computed[rows.long()]
        else:
            ends = counts.cumsum(0)
            req = torch.repeat_interleave(counts, output_size=total)
            rows = slots[req]
            positions = states.computed[rows.long()] + self._arange[:total] - (ends - counts)[req]
        wide = rows.long()
        block = states.block_table[wide, positions // PAGE_SIZE].long()
        return ForwardBatch(
            input_ids=states.token_ids[wide, positions].long(),
            positions=positions,
            slot_mapping=block * PAGE_SIZE + positions % PAGE_SIZE,
            req_rows=rows,
            lengths=(positions + 1).int(),
            block_table=states.block_table,
            topk_indices=self._topk[:total],
            max_length=int((plan.start + plan.num_tokens).max()),
        )

    def _sampling_inputs(
        self, sampled: Tensor, positions: Tensor, plan: StepPlan, table: RequestTable
    ) -> SamplingInputs:
        states, rows = self._states, sampled.long()
        return SamplingInputs(
            temperature=states.temperature[rows],
            top_k=states.top_k[rows],
            top_p=states.top_p[rows],
            seeds=states.seeds[rows],
            positions=positions,
            all_greedy=not table.temperature[plan.slots[plan.samples]].any(),
        )
