"""Model runner V2: stable slots; the state lives on the device and inputs are prepared there."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paths.dsa_mrv2.input_buffers import InputBuffers, StepRows
from paths.dsa_mrv2.states import RequestStates
from paths.engine.batch import ForwardBatch, LayerCache
from paths.engine.requests import RequestTable
from paths.engine.runner import Model, SamplingHead, StepResult
from paths.engine.sampler import SamplingInputs
from paths.engine.scheduler import StepPlan
from paths.kernels.registry import Kernels


class RunnerV2:
    """A step sends slots and token counts; ops make positions, ids and slot mapping from persistent state."""

    name = "V2"

    def __init__(
        self,
        *,
        model: Model,
        kernels: Kernels,
        caches: Sequence[LayerCache],
        table: RequestTable,
        eos_token_ids: Sequence[int],
        index_topk: int,
        max_num_batched_tokens: int,
        device: torch.device,
    ) -> None:
        self._model = model
        self._kernels = kernels
        self._caches = caches
        self._states = RequestStates(table, device)
        self._buffers = InputBuffers(
            max_tokens=max_num_batched_tokens,
            max_rows=table.block_table.shape[0],
            max_blocks=table.block_table.shape[1],
            index_topk=index_topk,
            device=device,
        )
        self._head = SamplingHead(model, kernels, eos_token_ids=eos_token_ids)
        self._device = device

    def nan_rows(self) -> int:
        return self._head.nan_rows()

    def execute(self, plan: StepPlan, table: RequestTable) -> StepResult:
        self._states.apply(plan, table)
        rows = self._buffers.send(plan)
        batch = self._prepare_inputs(plan, rows)
        wanted = int(plan.samples.sum())
        hidden = self._model.forward(batch, self._caches)
        result = self._head.run(
            hidden,
            plan,
            table,
            self._sampling_inputs(wanted, plan, table),
            logits_rows=self._buffers.logits_rows[:wanted],
        )
        sampled = torch.from_numpy(result.tokens).to(self._device).long()
        self._kernels.post_update(
            rows.slots,
            rows.query_start,
            rows.logits_start,
            sampled[:, None],
            rows.counts,
            computed=self._states.computed,
            total_len=self._states.total_len,
            token_ids=self._states.token_ids,
        )
        return result

    def _prepare_inputs(self, plan: StepPlan, rows: StepRows) -> ForwardBatch:
        states, buffers, kernels = self._states, self._buffers, self._kernels
        tokens, requests, wanted = plan.total_tokens, len(plan.slots), int(plan.samples.sum())
        positions, lengths = buffers.positions[:tokens], buffers.lengths[:tokens]
        req_rows, block_table = buffers.req_rows[:tokens], buffers.block_table[:requests]
        kernels.prepare_positions(
            rows.slots,
            rows.query_start,
            states.computed,
            positions=positions,
            req_rows=req_rows,
            lengths=lengths,
            seq_lens=buffers.seq_lens[:requests],
        )
        kernels.combine_tokens(
            rows.slots,
            rows.query_start,
            rows.logits_start,
            positions,
            states.token_ids,
            states.total_len,
            states.draft_tokens,
            input_ids=buffers.input_ids[:tokens],
            logits_rows=buffers.logits_rows[:wanted],
            logits_slots=buffers.logits_slots[:wanted],
            next_positions=buffers.next_positions[:wanted],
            draft_ids=buffers.draft_ids[:wanted],
        )
        kernels.gather_block_table(rows.slots, states.block_table, out=block_table)
        slot_mapping = buffers.slot_mapping[:tokens]
        kernels.slot_mapping(positions, req_rows, lengths, block_table, out=slot_mapping)
        return ForwardBatch(
            input_ids=buffers.input_ids[:tokens],
            positions=positions,
            slot_mapping=slot_mapping,
            req_rows=req_rows,
            lengths=lengths,
            block_table=block_table,
            topk_indices=buffers.topk_indices[:tokens],
            max_length=int((plan.start + plan.num_tokens).max()),
        )

    def _sampling_inputs(self, wanted: int, plan: StepPlan, table: RequestTable) -> SamplingInputs:
        """Parameters stay where they are, by slot; the op looks them up."""
        states = self._states
        return SamplingInputs(
            temperature=states.temperature,
            top_k=states.top_k,
            top_p=states.top_p,
            seeds=states.seeds,
            positions=self._buffers.next_positions[:wanted],
            all_greedy=not table.temperature[plan.slots[plan.samples]].any(),
            rows=self._buffers.logits_slots[:wanted],
        )
