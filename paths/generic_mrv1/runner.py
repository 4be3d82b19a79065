"""Model runner V1: state on the CPU, inputs built with numpy and copied to the device every step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from paths.engine.host_memory import HostStaging, TransferCounts
from paths.engine.logprobs import ScoreReader
from paths.engine.output import ReadyOutput, StepResult
from paths.engine.postponed import PostponedDrafts
from paths.engine.requests import RequestTable
from paths.engine.runner import Model
from paths.engine.sampler import SamplingInputs, sample
from paths.engine.sampling_head import ForbiddenTokens, PendingScores, SamplingHead
from paths.engine.scheduler import StepPlan
from paths.engine.speculation import DraftRows, Speculation, Verifier
from paths.engine.static_inputs import StaticInputs
from paths.generic_mrv1.drafter import DrafterV1
from paths.generic_mrv1.input_batch import InputBatch
from paths.generic_mrv1.sampling_buffers import SamplingBuffers
from paths.generic_mrv1.step_inputs import StepInputs
from paths.generic_mrv1.verification import Verification
from paths.graphs.drafts import GraphedDrafts
from paths.graphs.forward import GraphedForward
from paths.kernels.registry import Kernels


class RunnerV1:
    """Dense batch, numpy input preparation, one blocking copy of the sampled tokens per step.

    With drafts, one more of what was drafted, and inputs that are built again before each draft.
    """

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
        speculation: Speculation | None = None,
        drafts: GraphedDrafts | None = None,
    ) -> None:
        self._forward = forward
        self.speculation = speculation = speculation or Speculation()
        self._mtp = speculation.mtp
        verifier = Verifier(speculation, kernels)
        self.transfers = TransferCounts()
        self._staging = HostStaging(device, self.transfers)
        self._batch = InputBatch(table, mtp=self._mtp)
        self._step_inputs = StepInputs(inputs, self._batch, self._staging)
        self._sampling = SamplingBuffers(
            table, self._staging, device, mtp=self._mtp, needs_seeds=verifier.needs_seeds
        )
        most = len(table.live) * (1 + self._mtp)
        self._ops = TorchHeadOps(kernels, self._staging, verifier, max_rows=most, device=device)
        self._reader = ScoreReader(self.transfers, inside_step=True)
        self._head = SamplingHead(
            model, self._ops, eos_token_ids=eos_token_ids, device=device, reader=self._reader
        )
        self._drafts = PostponedDrafts()
        self._drafter: DrafterV1 | None = None
        self._verification: Verification | None = None
        if drafts is not None:
            self._drafter = DrafterV1(
                model=model,
                drafts=drafts,
                kernels=kernels,
                batch=self._batch,
                sampling=self._sampling,
                staging=self._staging,
            )
            if speculation.forced_al is None:
                self._verification = Verification(
                    drafts,
                    mtp=self._mtp,
                    staging=self._staging,
                    sampling=self._sampling,
                    judge=self._judge,
                )

    def nan_rows(self) -> int:
        return self._head.nan_rows()

    def execute(self, plan: StepPlan, table: RequestTable) -> ReadyOutput:
        batch = self._batch
        self._staging.begin()  # drafts are sent, too
        self._drafts.make(plan.released)
        batch.remove(plan.released)
        for slot in plan.admitted:
            batch.add(slot, table)
        batch.update_blocks(plan.grown, table)
        self._step_inputs.prepare(plan)
        hidden, _ = self._forward.run(plan.shape)
        if self._drafter is None:
            return self._sample(hidden, plan, table)
        return self._sample_and_draft(hidden, plan, table, self._drafter)

    def _sample(self, hidden: Tensor, plan: StepPlan, table: RequestTable) -> ReadyOutput:
        count, ends = plan.num_samples, (plan.start + plan.num_tokens)[: plan.num_samples]
        tokens, scores = self._sampled(hidden, plan, table)
        self._staging.end()
        values = self._staging.read(tokens).astype(np.int32)
        self._batch.append_tokens(plan.slots[:count], positions=ends, tokens=values)
        return ReadyOutput(result=StepResult(tokens=values, logprobs=scores.resolve(values)))

    def _sampled(self, hidden: Tensor, plan: StepPlan, table: RequestTable) -> tuple[Tensor, PendingScores]:
        """One token of each of the plan's first N rows."""
        count, ends = plan.num_samples, (plan.start + plan.num_tokens)[: plan.num_samples]
        rows = self._batch.row_of_slot[plan.slots[:count]]
        sampling = self._sampling.inputs(self._batch, rows, positions=ends)
        return self._head.run(hidden, plan, table, sampling, self._head.forbidden(plan, table))

    def _sample_and_draft(
        self, hidden: Tensor, plan: StepPlan, table: RequestTable, drafter: DrafterV1
    ) -> ReadyOutput:
        """Verify the last drafts, and draft behind what was accepted."""
        count = plan.num_samples
        if plan.num_drafts is None:
            tokens, scores = self._sampled(hidden, plan, table)
            values = np.full((count, self._mtp + 1), -1, dtype=np.int32)
            values[:, 0] = self._staging.read(tokens)
            accepted = np.zeros(count, dtype=np.int32)
        else:
            found = self._verified_at_once(hidden, plan, table)
            values, accepted, scores = found or self._verified(hidden, plan, table, drafter)
        logprobs = scores.resolve(values[:, 0]) if scores else {}
        drafted = plan.num_logits - 1
        known = (plan.start + plan.num_tokens)[:count] - drafted
        self._batch.append_runs(plan.slots[:count], positions=known, counts=accepted + 1, tokens=values)
        if not all(table.needs_host[plan.slots].tolist()):  # of few, faster than the array's own
            propose = partial(
                drafter.propose,
                plan,
                hidden,
                rejected=drafted - accepted,
                limits=table.max_total[plan.slots[:count]],
            )
            self._drafts.postpone(plan.slots, propose)
        self._staging.end()
        return ReadyOutput(result=StepResult(tokens=values, accepted=accepted, logprobs=logprobs))

    def _verified_at_once(
        self, hidden: Tensor, plan: StepPlan, table: RequestTable
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], PendingScores] | None:
        """As `_verified`, where every request verifies all its drafts greedily; None elsewhere."""
        rows = self._batch.row_of_slot[plan.slots]
        if self._verification is None or not self._verification.fits(plan.shape):
            return None
        drawn, special = self._batch.temperature[rows].tolist(), table.needs_host[plan.slots].tolist()
        if any(drawn) or any(special) or self._head.forbidden(plan, table):
            return None
        yielded = self._verification.run(hidden, self._batch.draft_ids[rows].reshape(-1), plan.shape)
        values = self._staging.read(yielded).astype(np.int32)
        return values[:, :-1], values[:, -1] - 1, PendingScores(reader=self._reader)

    def _verified(
        self, hidden: Tensor, plan: StepPlan, table: RequestTable, drafter: DrafterV1
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], PendingScores]:
        """Tokens `[N, 1 + mtp]` and accepted drafts `[N]`, read."""
        batch = self._batch
        rows = batch.row_of_slot[plan.slots[: plan.num_samples]]
        sampling = self._sampling.inputs_of_drafts(batch, rows, plan)
        drafts = drafter.rows_to_verify(plan, rows, all_greedy=sampling.all_greedy)
        forbidden = self._head.forbidden(plan, table)
        tokens, counts, scores = self._head.verify(hidden, plan, table, sampling, forbidden, drafts)
        values, yielded = self._staging.read_both(tokens, counts)
        return values.astype(np.int32), yielded.astype(np.int32) - 1, scores

    def _judge(self, hidden: Tensor, sampling: SamplingInputs, drafts: DraftRows) -> tuple[Tensor, Tensor]:
        return self._ops.verify(self._head.counted_logits(hidden), sampling, drafts)


class TorchHeadOps:
    """The end of a V1 step in torch; `sample`, `rejection` and the count of NaN are ops of the registry."""

    def __init__(
        self,
        kernels: Kernels,
        staging: HostStaging,
        verifier: Verifier,
        *,
        max_rows: int,
        device: torch.device,
    ) -> None:
        self._kernels = kernels
        self._staging = staging
        self._verifier = verifier
        self._logits_rows = torch.zeros(max_rows, dtype=torch.int64, device=device)

    def pick(self, hidden: Tensor, rows: npt.NDArray[np.int32]) -> Tensor:
        return hidden[self._staging.send("logits_rows", rows, self._logits_rows)]

    def count_nan_rows(self, logits: Tensor, total: Tensor) -> None:
        self._kernels.count_nan_rows(logits, total=total)

    def forbid(self, logits: Tensor, forbidden: ForbiddenTokens) -> None:
        rows = self._copy(forbidden.rows)
        logits[rows, self._copy(forbidden.tokens)] = -torch.inf

    def sample(self, logits: Tensor, inputs: SamplingInputs) -> Tensor:
        return sample(logits, inputs, self._kernels.sample)

    def verify(self, logits: Tensor, inputs: SamplingInputs, drafts: DraftRows) -> tuple[Tensor, Tensor]:
        return self._verifier.verify(logits, inputs, drafts)

    def force(self, tokens: Tensor, rows: list[int], values: list[int]) -> None:
        tokens[self._copy(np.asarray(rows, np.int32))] = self._copy(np.asarray(values, np.int32))

    def _copy(self, values: npt.NDArray[np.int32]) -> Tensor:
        """int64 on the device, from memory that is not pinned: for what is rare and of no fixed size."""
        return self._staging.send_once(values.astype(np.int64))
