"""Model runner V1: state on the CPU, inputs built with numpy and copied to the device every step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from paths.engine.batch import PAGE_SIZE
from paths.engine.requests import RequestTable
from paths.engine.runner import Model, SamplingHead, StepResult
from paths.engine.sampler import SamplingInputs
from paths.engine.scheduler import StepPlan
from paths.engine.static_inputs import StaticInputs
from paths.generic_mrv1.input_batch import InputBatch
from paths.graphs.forward import GraphedForward
from paths.kernels.registry import Kernels


class RunnerV1:
    """Dense batch, numpy input preparation, one blocking copy of the sampled tokens per step."""

    name = "V1"

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
        self._device = device
        self._batch = InputBatch(table)
        self._head = SamplingHead(model, kernels, eos_token_ids=eos_token_ids)

    def nan_rows(self) -> int:
        return self._head.nan_rows()

    def execute(self, plan: StepPlan, table: RequestTable) -> StepResult:
        batch = self._batch
        batch.remove(plan.released)
        for slot in plan.admitted:
            batch.add(slot, table)
        batch.update_blocks(plan.grown, table)
        self._prepare_inputs(plan)
        hidden, mode = self._forward.run(plan.shape)
        result = self._head.run(hidden, plan, table, self._sampling_inputs(plan))
        result.graph_mode = mode.value
        sampled = plan.slots[plan.samples]
        batch.append_tokens(
            sampled,
            positions=(plan.start + plan.num_tokens)[plan.samples],
            tokens=result.tokens[plan.samples],
        )
        return result

    def _prepare_inputs(self, plan: StepPlan) -> None:
        """Everything that the forward pass reads, built on the host and copied into the static inputs."""
        rows = self._batch.row_of_slot[plan.slots]
        block_table = self._batch.block_table[rows]
        total = plan.total_tokens
        req = np.repeat(np.arange(len(rows), dtype=np.int32), plan.num_tokens)
        first = np.cumsum(plan.num_tokens) - plan.num_tokens
        positions = (plan.start - first)[req] + np.arange(total)
        slots = block_table[req, positions // PAGE_SIZE].astype(np.int64) * PAGE_SIZE + positions % PAGE_SIZE
        inputs = self._inputs
        self._fill(inputs.input_ids, self._batch.token_ids[rows[req], positions])
        self._fill(inputs.positions, positions)
        self._fill(inputs.slot_mapping, slots)
        self._fill(inputs.req_rows, req)
        self._fill(inputs.lengths, positions + 1)
        self._fill(inputs.seq_lens, plan.start + plan.num_tokens)
        self._fill(inputs.block_table, block_table)

    @staticmethod
    def _fill(buffer: Tensor, values: np.ndarray) -> None:
        buffer[: len(values)].copy_(torch.from_numpy(values))

    def _sampling_inputs(self, plan: StepPlan) -> SamplingInputs:
        rows = self._batch.row_of_slot[plan.slots[plan.samples]]
        temperature = self._batch.temperature[rows]
        return SamplingInputs(
            temperature=self._copy(temperature),
            top_k=self._copy(self._batch.top_k[rows]),
            top_p=self._copy(self._batch.top_p[rows]),
            seeds=self._copy(self._batch.seeds[rows]),
            positions=self._copy((plan.start + plan.num_tokens)[plan.samples].astype(np.int64)),
            all_greedy=not temperature.any(),
        )

    def _copy(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self._device)
