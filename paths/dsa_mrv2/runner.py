"""Model runner V2: stable slots; the state lives on the device and inputs are prepared there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from paths.dsa_mrv2.drafter import DrafterV2
from paths.dsa_mrv2.input_buffers import InputBuffers, StepRows, send_step
from paths.dsa_mrv2.states import RequestStates
from paths.engine.host_memory import HostRing, TransferCounts
from paths.engine.logprobs import ScoreReader
from paths.engine.output import AsyncOutput, OutputCopier
from paths.engine.requests import RequestTable
from paths.engine.runner import Model
from paths.engine.sampler import SamplingInputs, sample
from paths.engine.sampling_head import ForbiddenTokens, SamplingHead
from paths.engine.scheduler import StepPlan
from paths.engine.speculation import DraftRows, Speculation, Verifier
from paths.engine.static_inputs import StaticInputs
from paths.graphs.drafts import GraphedDrafts
from paths.graphs.forward import GraphedForward
from paths.kernels.registry import Kernels

STEPS_IN_FLIGHT = 2  # one that runs, and one whose tokens are being read


class RunnerV2:
    """A step sends slots, token counts and what changed; ops make everything else from persistent state.

    Nothing in `execute` waits for the device, so the next step can be launched before this one is over.
    """

    name = "V2"
    asynchronous = True

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
        speculation: Speculation | None = None,
        drafts: GraphedDrafts | None = None,
    ) -> None:
        self.speculation = speculation = speculation or Speculation()
        self._mtp = speculation.mtp
        self._forward = forward
        self._inputs = inputs
        self._kernels = kernels
        self.transfers = TransferCounts()
        max_rows = len(table.live)
        self._states = RequestStates(table, device, mtp=self._mtp)
        self._buffers = InputBuffers(max_rows=max_rows, device=device, mtp=self._mtp)
        self._ring = HostRing(device, depth=STEPS_IN_FLIGHT, counts=self.transfers)
        self._copier = OutputCopier(
            device, max_rows=max_rows, depth=STEPS_IN_FLIGHT, counts=self.transfers, mtp=self._mtp
        )
        self._ops = KernelHeadOps(kernels, self._buffers, Verifier(speculation, kernels))
        reader = ScoreReader(self.transfers, inside_step=False)
        self._head = SamplingHead(model, self._ops, eos_token_ids=eos_token_ids, device=device, reader=reader)
        self._drafter: DrafterV2 | None = None
        if drafts is not None:
            self._drafter = DrafterV2(
                model=model, drafts=drafts, kernels=kernels, states=self._states, step_inputs=inputs
            )

    def nan_rows(self) -> int:
        return self._head.nan_rows()

    @torch.inference_mode()
    def execute(self, plan: StepPlan, table: RequestTable) -> AsyncOutput:
        states = self._states
        forbidden = self._head.forbidden(plan, table)
        writes = states.stage(plan, table)
        rows = send_step(plan, writes, forbidden, self._ring)
        if rows.writes is not None and rows.values is not None:
            self._kernels.apply_writes(states.words, rows.writes, rows.values, longest=writes.longest)
        self._prepare_inputs(plan, rows)
        hidden, _ = self._forward.run(plan.shape)
        self._ops.rows = rows
        if self._drafter is None:
            return self._sample(hidden, plan, table, rows, forbidden)
        return self._sample_and_draft(hidden, plan, table, rows, forbidden, self._drafter)

    def _sample(
        self,
        hidden: Tensor,
        plan: StepPlan,
        table: RequestTable,
        rows: StepRows,
        forbidden: ForbiddenTokens,
    ) -> AsyncOutput:
        tokens, scores = self._head.run(hidden, plan, table, self._sampling_inputs(plan, table), forbidden)
        output = self._copier.start(tokens, scores.resolve if scores else None)
        self._buffers.sampled[: plan.num_samples, 0].copy_(tokens)
        self._post_update(plan, rows, rows.counts)
        return output

    def _sample_and_draft(
        self,
        hidden: Tensor,
        plan: StepPlan,
        table: RequestTable,
        rows: StepRows,
        forbidden: ForbiddenTokens,
        drafter: DrafterV2,
    ) -> AsyncOutput:
        """Verify the last drafts, and draft behind what was accepted, which only the device knows."""
        buffers, count, inputs = self._buffers, plan.num_samples, self._sampling_inputs(plan, table)
        sampled, accepted = buffers.sampled[:count], buffers.accepted[:count]
        if plan.num_drafts is None:
            tokens, scores = self._head.run(hidden, plan, table, inputs, forbidden)
            counts = rows.counts
            sampled.fill_(-1)
            sampled[:, 0].copy_(tokens)
        else:
            drafts = DraftRows(
                ids=buffers.draft_ids[: len(inputs.positions)],
                starts=rows.logits_start[: count + 1],
                probs=self._states.draft_probs,
            )
            tokens, yielded, scores = self._head.verify(hidden, plan, table, inputs, forbidden, drafts)
            counts = buffers.counts[: len(plan.slots)]
            counts[:count].copy_(yielded)
            sampled.copy_(tokens)
        torch.sub(counts[:count], 1, out=accepted)
        # read before the next step is planned, so nobody writes over them
        output = self._copier.start(buffers.yielded[:count], scores.resolve if scores else None)
        self._post_update(plan, rows, counts)
        if not table.needs_host[plan.slots].all():
            drafter.propose(plan, table, rows, hidden, counts)
        return output

    def _post_update(self, plan: StepPlan, rows: StepRows, counts: Tensor) -> None:
        states = self._states
        self._kernels.post_update(
            rows.slots,
            rows.query_start,
            rows.logits_start,
            self._buffers.sampled[: len(plan.slots)],
            counts,
            computed=states.computed,
            total_len=states.total_len,
            token_ids=states.token_ids,
        )

    def _prepare_inputs(self, plan: StepPlan, rows: StepRows) -> None:
        states, buffers, inputs, kernels = self._states, self._buffers, self._inputs, self._kernels
        tokens, requests, wanted = plan.total_tokens, len(plan.slots), _num_logits(plan)
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

    def _sampling_inputs(self, plan: StepPlan, table: RequestTable) -> SamplingInputs:
        """Parameters stay where they are, by slot; the op looks them up."""
        states, wanted = self._states, _num_logits(plan)
        return SamplingInputs(
            temperature=states.temperature,
            top_k=states.top_k,
            top_p=states.top_p,
            seeds=states.seeds,
            positions=self._buffers.next_positions[:wanted],
            all_greedy=not table.temperature[plan.slots[: plan.num_samples]].any(),
            rows=self._buffers.logits_slots[:wanted],
        )


class KernelHeadOps:
    """The end of a V2 step in ops, on what the step sent."""

    rows: StepRows

    def __init__(self, kernels: Kernels, buffers: InputBuffers, verifier: Verifier) -> None:
        self._kernels = kernels
        self._buffers = buffers
        self._verifier = verifier

    def pick(self, hidden: Tensor, rows: npt.NDArray[np.int32]) -> Tensor:
        return self._kernels.gather_rows(hidden, self._buffers.logits_rows[: len(rows)])

    def count_nan_rows(self, logits: Tensor, total: Tensor) -> None:
        self._kernels.count_nan_rows(logits, total=total)

    def forbid(self, logits: Tensor, forbidden: ForbiddenTokens) -> None:
        assert self.rows.forbidden_rows is not None, "sent with the step"
        assert self.rows.forbidden_tokens is not None, "sent with the step"
        self._kernels.mask_tokens(logits, self.rows.forbidden_rows, self.rows.forbidden_tokens)

    def sample(self, logits: Tensor, inputs: SamplingInputs) -> Tensor:
        return sample(logits, inputs, self._kernels.sample)

    def verify(self, logits: Tensor, inputs: SamplingInputs, drafts: DraftRows) -> tuple[Tensor, Tensor]:
        return self._verifier.verify(logits, inputs, drafts)

    def force(self, tokens: Tensor, rows: list[int], values: list[int]) -> None:
        for row, value in zip(rows, values, strict=True):
            tokens[row : row + 1].fill_(value)


def _num_logits(plan: StepPlan) -> int:
    """Rows whose logits are wanted."""
    return plan.num_samples if plan.num_drafts is None else int(plan.num_logits.sum())
