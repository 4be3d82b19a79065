"""Greedy verification of runner V1 where every request verifies all its drafts: a pass for graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from paths.engine.batch import ForwardBatch, LayerCache
from paths.engine.host_memory import HostStaging
from paths.engine.sampler import SamplingInputs
from paths.engine.speculation import DraftRows
from paths.engine.static_inputs import DraftInputs
from paths.generic_mrv1.sampling_buffers import SamplingBuffers
from paths.graphs.draft_pass import DraftModel
from paths.graphs.drafts import GraphedDrafts
from paths.graphs.shape import BatchShape
from paths.graphs.whole_pass import WholePass

# states `[T, Dm]` and how they are judged → tokens int64 `[N, 1 + mtp]`, −1 behind the last, how many `[N]`
Judge = Callable[[Tensor, SamplingInputs, DraftRows], tuple[Tensor, Tensor]]


class VerificationInputs(DraftInputs):
    """The buffers of `of`, and the drafts of a step in which each request has one row and `mtp` drafts."""

    draft_ids: Tensor  # [max_tokens] int64: what a row judges, any value in the last one of a request
    starts: Tensor  # [max_reqs + 1] int32: first row of a request
    yielded: Tensor  # [max_reqs, 2 + mtp] int64: tokens, and how many

    def __init__(self, of: DraftInputs, *, mtp: int) -> None:
        starts = torch.arange(of.max_reqs + 1, dtype=torch.int32, device=of.device) * (1 + mtp)
        self.__dict__.update(
            of.tensors(),
            draft_ids=torch.zeros_like(of.input_ids),
            starts=starts,
            yielded=of.input_ids.new_zeros(of.max_reqs, 2 + mtp),
        )

    def num_outputs(self, shape: BatchShape) -> int:
        """One row per request."""
        return shape.num_reqs


class Verification:
    """The pass and its inputs. judge: the ops of it."""

    def __init__(
        self,
        drafts: GraphedDrafts,
        *,
        mtp: int,
        staging: HostStaging,
        sampling: SamplingBuffers,
        judge: Judge,
    ) -> None:
        self._query_len, self._staging = 1 + mtp, staging
        self._inputs = VerificationInputs(drafts.inputs, mtp=mtp)
        step = GreedyVerification(drafts.model, self._inputs, sampling=sampling, judge=judge)
        self._forward = drafts.capture_with(step, self._inputs)

    def fits(self, shape: BatchShape) -> bool:
        """Whether every request verifies all its drafts; that all are greedy has to be known as well."""
        return shape.query_len == self._query_len

    def run(self, hidden: Tensor, draft_ids: npt.NDArray[np.int32], shape: BatchShape) -> Tensor:
        """States `[T, Dm]` of a step and its drafts `[T]` → what `GreedyVerification.forward` returns.

        Valid until the next call.
        """
        self._staging.rows(self._inputs.hidden, len(hidden)).copy_(hidden)
        self._staging.put("judged_drafts", draft_ids, self._inputs.draft_ids)
        return self._forward.run(shape)[0]


class GreedyVerification(WholePass):
    """From the states of a step in `inputs.hidden` and its drafts to its tokens."""

    def __init__(
        self, model: DraftModel, inputs: VerificationInputs, *, sampling: SamplingBuffers, judge: Judge
    ) -> None:
        super().__init__(model)
        self._inputs, self._sampling, self._judge = inputs, sampling, judge

    def forward(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Tensor:
        """int64 `[N, 2 + mtp]`: tokens of each request, and how many."""
        rows, count = batch.num_tokens, batch.block_table.shape[0]
        drafts = DraftRows(
            ids=self._inputs.draft_ids[:rows], starts=self._inputs.starts[: count + 1], probs=None
        )
        tokens, counts = self._judge(
            self._inputs.hidden[:rows], self._sampling.of_uniform_greedy(count), drafts
        )
        yielded = self._inputs.yielded[:count]
        yielded[:, :-1].copy_(tokens)
        yielded[:, -1].copy_(counts)
        return yielded
