"""Model runner V1: state on the CPU, inputs built with numpy and copied to the device every step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from paths.engine.batch import PAGE_SIZE
from paths.engine.host_memory import HostStaging, TransferCounts
from paths.engine.logprobs import ScoreReader
from paths.engine.output import ReadyOutput, StepResult
from paths.engine.requests import RequestTable
from paths.engine.runner import Model
from paths.engine.sampler import SamplingInputs, sample
from paths.engine.sampling_head import ForbiddenTokens, SamplingHead
from paths.engine.scheduler import StepPlan
from paths.engine.static_inputs import StaticInputs
from paths.generic_mrv1.input_batch import InputBatch
from paths.generic_mrv1.sampling_buffers import SamplingBuffers
from paths.graphs.forward import GraphedForward
from paths.kernels.registry import Kernels


class RunnerV1:
    """Dense batch, numpy input preparation, one blocking copy of the sampled tokens per step."""

    name = "V1"
    asynchronous = False

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
        self.transfers = TransferCounts()
        self._staging = HostStaging(device, self.transfers)
        self._batch = InputBatch(table)
        self._sampling = SamplingBuffers(table, self._staging, device)
        ops = TorchHeadOps(kernels, self._staging, max_reqs=len(table.live), device=device)
        reader = ScoreReader(self.transfers, inside_step=True)
        self._head = SamplingHead(model, ops, eos_token_ids=eos_token_ids, device=device, reader=reader)

    def nan_rows(self) -> int:
        return self._head.nan_rows()

    def execute(self, plan: StepPlan, table: RequestTable) -> ReadyOutput:
        batch, count = self._batch, plan.num_samples
        batch.remove(plan.released)
        for slot in plan.admitted:
            batch.add(slot, table)
        batch.update_blocks(plan.grown, table)
        self._staging.begin()
        self._prepare_inputs(plan)
        hidden, _ = self._forward.run(plan.shape)
        ends = (plan.start + plan.num_tokens)[:count]
        rows = batch.row_of_slot[plan.slots[:count]]
        sampling = self._sampling.inputs(batch, rows, positions=ends)
        tokens, scores = self._head.run(hidden, plan, table, sampling, self._head.forbidden(plan, table))
        self._staging.end()
        values = self._staging.read(tokens).astype(np.int32)
        batch.append_tokens(plan.slots[:count], positions=ends, tokens=values)
        return ReadyOutput(result=StepResult(tokens=values, logprobs=scores.resolve(values)))

    def _prepare_inputs(self, plan: StepPlan) -> None:
        """Everything that the forward pass reads, built on the host and copied into the static inputs."""
        rows = self._batch.row_of_slot[plan.slots]
        block_table = self._batch.block_table[rows]
        req = np.repeat(np.arange(len(rows), dtype=np.int32), plan.num_tokens)
        first = np.cumsum(plan.num_tokens) - plan.num_tokens
        positions = (plan.start - first)[req] + np.arange(plan.total_tokens)
        slots = block_table[req, positions // PAGE_SIZE].astype(np.int64) * PAGE_SIZE + positions % PAGE_SIZE
        inputs, send = self._inputs, self._staging.send
        send("input_ids", self._batch.token_ids[rows[req], positions], inputs.input_ids)
        send("positions", positions, inputs.positions)
        send("slot_mapping", slots, inputs.slot_mapping)
        send("req_rows", req, inputs.req_rows)
        send("lengths", positions + 1, inputs.lengths)
        send("seq_lens", plan.start + plan.num_tokens, inputs.seq_lens)
        send("block_table", block_table, inputs.block_table)


class TorchHeadOps:
    """The end of a V1 step in torch; only `sample` is an op of the registry."""

    def __init__(
        self, kernels: Kernels, staging: HostStaging, *, max_reqs: int, device: torch.device
    ) -> None:
        self._kernels = kernels
        self._staging = staging
        self._logits_rows = torch.zeros(max_reqs, dtype=torch.int64, device=device)

    def pick(self, hidden: Tensor, ends: npt.NDArray[np.int32], count: int) -> Tensor:
        return hidden[self._staging.send("logits_rows", ends[:count] - 1, self._logits_rows)]

    def count_nan_rows(self, logits: Tensor, total: Tensor) -> None:
        total += logits.isnan().any(dim=-1).sum()

    def forbid(self, logits: Tensor, forbidden: ForbiddenTokens) -> None:
        rows = self._copy(forbidden.rows)
        logits[rows, self._copy(forbidden.tokens)] = -torch.inf

    def sample(self, logits: Tensor, inputs: SamplingInputs) -> Tensor:
        return sample(logits, inputs, self._kernels.sample)

    def force(self, tokens: Tensor, rows: list[int], values: list[int]) -> None:
        tokens[self._copy(np.asarray(rows, np.int32))] = self._copy(np.asarray(values, np.int32))

    def _copy(self, values: npt.NDArray[np.int32]) -> Tensor:
        """int64 on the device, from memory that is not pinned: for what is rare and of no fixed size."""
        return self._staging.send_once(values.astype(np.int64))
