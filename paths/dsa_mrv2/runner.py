"""Model runner V2: stable slots; the state lives on the device and inputs are prepared there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from paths.dsa_mrv2.drafter import DrafterV2
from paths.dsa_mrv2.input_buffers import InputBuffers, StepRows, StepViews, ViewCache, send_step
from paths.dsa_mrv2.states import RequestStates
from paths.dsa_mrv2.verification import Verification
from paths.engine.host_memory import HostRing, TransferCounts
from paths.engine.logprobs import ScoreReader
from paths.engine.output import AsyncOutput, OutputCopier
from paths.engine.postponed import PostponedDrafts
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
        self._kernels = kernels
        self.transfers = TransferCounts()
        max_rows = len(table.live)
        self._states = RequestStates(table, device, mtp=self._mtp)
        self._buffers = InputBuffers(max_rows=max_rows, device=device, mtp=self._mtp)
        self._views = ViewCache(inputs, self._buffers, self._states)
        self._ring = HostRing(device, depth=STEPS_IN_FLIGHT, counts=self.transfers)
        self._copier = OutputCopier(
            device, max_rows=max_rows, depth=STEPS_IN_FLIGHT, counts=self.transfers, mtp=self._mtp
        )
        self._ops = KernelHeadOps(kernels, Verifier(speculation, kernels))
        reader = ScoreReader(self.transfers, inside_step=False)
        self._head = SamplingHead(model, self._ops, eos_token_ids=eos_token_ids, device=device, reader=reader)
        # on a CPU a launch is over when it returns, and tokens would wait for the drafts behind them
        self._postpones = device.type == "cpu"
        self._drafts = PostponedDrafts()
        self._drafter: DrafterV2 | None = None
        self._verification: Verification | None = None
        if drafts is not None:
            self._drafter = DrafterV2(
                model=model, drafts=drafts, kernels=kernels, states=self._states, step_inputs=inputs
            )
            if self._drafter.joins_steps:
                self._verification = Verification(
                    drafts, mtp=self._mtp, views=self._views, verify=self._verify_greedily
                )

    def nan_rows(self) -> int:
        return self._head.nan_rows()

    @torch.inference_mode()
    def execute(self, plan: StepPlan, table: RequestTable) -> AsyncOutput:
        states = self._states
        self._drafts.make(plan.released)
        forbidden = self._head.forbidden(plan, table)
        writes = states.stage(plan, table)
        rows = send_step(plan, writes, forbidden, self._ring)
        if rows.writes is not None and rows.values is not None:
            self._kernels.apply_writes(states.words, rows.writes, rows.values, longest=writes.longest)
        views = self._views.of(plan)
        self._prepare_inputs(rows, views)
        hidden, _ = self._forward.run(plan.shape)
        self._ops.rows, self._ops.views = rows, views
        all_greedy = not any(table.temperature[plan.slots[: plan.num_samples]].tolist())
        sampling = views.greedy if all_greedy else views.drawn
        if self._drafter is None:
            return self._sample(hidden, plan, table, views, sampling, forbidden)
        alike = plan.shape.query_len == 1 + self._mtp and all_greedy and not forbidden
        if alike and self._verification is not None and True not in table.needs_host[plan.slots].tolist():
            return self._verify_and_draft(hidden, plan, table, self._verification, self._drafter)
        return self._sample_and_draft(hidden, plan, table, views, sampling, forbidden, self._drafter)

    def _sample(
        self,
        hidden: Tensor,
        plan: StepPlan,
        table: RequestTable,
        views: StepViews,
        sampling: SamplingInputs,
        forbidden: ForbiddenTokens,
    ) -> AsyncOutput:
        tokens, scores = self._head.run(hidden, plan, table, sampling, forbidden)
        output = self._copier.start(tokens, scores.resolve if scores else None)
        views.first.copy_(tokens)
        self._post_update(self._ops.rows, views, self._ops.rows.counts)
        return output

    def _sample_and_draft(
        self,
        hidden: Tensor,
        plan: StepPlan,
        table: RequestTable,
        views: StepViews,
        sampling: SamplingInputs,
        forbidden: ForbiddenTokens,
        drafter: DrafterV2,
    ) -> AsyncOutput:
        """Verify the last drafts, and draft behind what was accepted, which only the device knows."""
        rows = self._ops.rows
        if plan.num_drafts is None:
            tokens, scores = self._head.run(hidden, plan, table, sampling, forbidden)
            counts = rows.counts
            views.sampled.fill_(-1)
            views.first.copy_(tokens)
            views.num_sampled.fill_(1)
        else:
            drafts = _draft_rows(rows, views, self._states.draft_probs)
            tokens, counts, scores = self._head.verify(hidden, plan, table, sampling, forbidden, drafts)
            _keep_verified(views, tokens, counts)
            if plan.num_samples < len(plan.slots):
                views.counts[: plan.num_samples].copy_(counts)
                counts = views.counts
        # read before the next step is planned, so nobody writes over them
        output = self._copier.start(views.yielded, scores.resolve if scores else None)
        self._post_update(rows, views, counts)
        if False in table.needs_host[plan.slots].tolist():
            self._draft(
                plan,
                partial(
                    drafter.propose,
                    plan,
                    table,
                    rows,
                    views,
                    hidden,
                    counts=counts,
                    all_greedy=sampling.all_greedy,
                ),
            )
        return output

    def _verify_and_draft(
        self,
        hidden: Tensor,
        plan: StepPlan,
        table: RequestTable,
        verification: Verification,
        drafter: DrafterV2,
    ) -> AsyncOutput:
        """`_sample_and_draft` of a step in which every request verifies all its drafts greedily."""
        yielded = verification.run(hidden, self._ops.rows.slots, plan.shape)
        output = self._copier.start(yielded, None)
        self._draft(plan, partial(drafter.propose_joined, plan, table))
        return output

    def _draft(self, plan: StepPlan, propose: Callable[[], None]) -> None:
        self._drafts.postpone(plan.slots, propose)
        if not self._postpones:
            self._drafts.make()

    def _verify_greedily(self, hidden: Tensor, rows: StepRows, views: StepViews) -> None:
        """Everything between the states of such a step and its drafts."""
        assert self._drafter is not None, "there are drafts"
        logits = self._head.counted_logits(hidden)
        tokens, counts = self._ops.verify(logits, views.greedy, _draft_rows(rows, views, None))
        _keep_verified(views, tokens, counts)
        self._post_update(rows, views, counts)
        self._drafter.prepare_first(rows, views, counts)

    def _post_update(self, rows: StepRows, views: StepViews, counts: Tensor) -> None:
        states = self._states
        self._kernels.post_update(
            rows.slots,
            rows.query_start,
            rows.logits_start,
            views.sampled_rows,
            counts,
            computed=states.computed,
            total_len=states.total_len,
            token_ids=states.token_ids,
        )

    def _prepare_inputs(self, rows: StepRows, views: StepViews) -> None:
        states, kernels = self._states, self._kernels
        kernels.prepare_positions(
            rows.slots,
            rows.query_start,
            states.computed,
            positions=views.positions,
            req_rows=views.req_rows,
            lengths=views.lengths,
            seq_lens=views.seq_lens,
        )
        kernels.combine_tokens(
            rows.slots,
            rows.query_start,
            rows.logits_start,
            views.positions,
            states.token_ids,
            states.total_len,
            states.draft_tokens,
            input_ids=views.input_ids,
            logits_rows=views.logits_rows,
            logits_slots=views.logits_slots,
            next_positions=views.next_positions,
            draft_ids=views.draft_ids,
        )
        kernels.gather_block_table(rows.slots, states.block_table, out=views.block_table)
        kernels.slot_mapping(
            views.positions, views.req_rows, views.lengths, views.block_table, out=views.slot_mapping
        )


def _draft_rows(rows: StepRows, views: StepViews, probs: Tensor | None) -> DraftRows:
    """What the step verifies; of requests that yield nothing there is no logits row."""
    return DraftRows(ids=views.draft_ids, starts=rows.logits_start[: len(views.yielded) + 1], probs=probs)


def _keep_verified(views: StepViews, tokens: Tensor, counts: Tensor) -> None:
    views.sampled.copy_(tokens)
    views.num_sampled.copy_(counts)


class KernelHeadOps:
    """The end of a V2 step in ops, on what the step sent."""

    rows: StepRows
    views: StepViews

    def __init__(self, kernels: Kernels, verifier: Verifier) -> None:
        self._kernels = kernels
        self._verifier = verifier

    def pick(self, hidden: Tensor, rows: npt.NDArray[np.int32]) -> Tensor:
        return self._kernels.gather_rows(hidden, self.views.logits_rows)

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
