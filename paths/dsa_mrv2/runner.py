"""Model runner V2: stable slots; the state lives on the device and inputs are prepared there."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paths.dsa_mrv2.input_buffers import InputBuffers, StepRows
from paths.dsa_mrv2.states import RequestStates
from paths.engine.requests import RequestTable
from paths.engine.runner import Model, SamplingHead, StepResult
from paths.engine.sampler import SamplingInputs
from paths.engine.scheduler import StepPlan
from paths.engine.static_inputs import StaticInputs
from paths.graphs.forward import GraphedForward
from paths.kernels.registry import Kernels


class RunnerV2:
    """A step sends slots and token counts; ops make positions, ids and slot mapping from persistent state."""

    name = "V2"

    def __init__(
        self,
        *,
        model: Model,
        forward: GraphedForward,
        inputs: StaticInputs,
        kernels: Kernels,
        table: RequestTable,
        eos_token_ids: Sequence[int],
        device: torch.device,
    ) -> None:
        self._forward = forward
        self._inputs = inputs
        self._kernels = kernels
        self._states = RequestStates(table, device)
        self._buffers = InputBuffers(max_rows=table.block_table.shape[0], device=device)
        self._head = SamplingHead(model, kernels, eos_token_ids=eos_token_ids)
        self._device = device

    def nan_rows(self) -> int:
        return self._head.nan_rows()

    def execute(self, plan: StepPlan, table: RequestTable) -> StepResult:
        self._states.apply(plan, table)
        rows = self._buffers.send(plan)
        self._prepare_inputs(plan, rows)
        wanted = int(plan.samples.sum())
        hidden, mode = self._forward.run(plan.shape)
        result = self._head.run(
            hidden,
            plan,
            table,
            self._sampling_inputs(wanted, plan, table),
            logits_rows=self._buffers.logits_rows[:wanted],
        )
        result.graph_mode = mode.value
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

    def _prepare_inputs(self, plan: StepPlan, rows: StepRows) -> None:
        states, buffers, inputs, kernels = self._states, self._buffers, self._inputs, self._kernels
        tokens, requests, wanted = plan.total_tokens, len(plan.slots), int(plan.samples.sum())
        positions, lengths = inputs.positions[:tokens], inputs.lengths[:tokens]
        req_rows, block_table = inputs.req_rows[:tokens], inputs.block_table[:requests]
        kernels.prepare_positions(
            rows.slots,
            rows.query_start,
            states.computed,
            positions=positions,
            req_rows=req_rows,
            lengths=lengths,
            seq_lens=inputs.seq_lens[:requests],
        )
        kernels.combine_tokens(
            rows.slots,
            rows.query_start,
            rows.logits_start,
            positions,
            states.token_ids,
            states.total_len,
            states.draft_tokens,
            input_ids=inputs.input_ids[:tokens],
            logits_rows=buffers.logits_rows[:wanted],
            logits_slots=buffers.logits_slots[:wanted],
            next_positions=buffers.next_positions[:wanted],
            draft_ids=buffers.draft_ids[:wanted],
        )
        kernels.gather_block_table(rows.slots, states.block_table, out=block_table)
        kernels.slot_mapping(positions, req_rows, lengths, block_table, out=inputs.slot_mapping[:tokens])

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
