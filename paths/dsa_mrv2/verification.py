"""Greedy verification where every request verifies all its drafts: a pass that graphs capture."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from paths.dsa_mrv2.input_buffers import StepRows, StepViews, ViewCache
from paths.engine.batch import ForwardBatch, LayerCache
from paths.engine.static_inputs import DraftInputs
from paths.graphs.draft_pass import DraftModel
from paths.graphs.drafts import GraphedDrafts
from paths.graphs.shape import BatchShape
from paths.graphs.whole_pass import WholePass


class VerificationInputs(DraftInputs):
    """The buffers of `of`, and what verification reads of each request."""

    slots: Tensor  # [max_reqs] int32, −1 for padding
    starts: Tensor  # [max_reqs + 1] int32: first row of a request that has one row and mtp drafts
    ones: Tensor  # [max_reqs] int32

    def __init__(self, of: DraftInputs, *, mtp: int) -> None:
        slots = torch.full_like(of.seq_lens, -1)
        starts = torch.arange(len(slots) + 1, dtype=torch.int32, device=of.device) * (1 + mtp)
        self.__dict__.update(of.tensors(), slots=slots, starts=starts, ones=torch.ones_like(slots))

    def num_outputs(self, shape: BatchShape) -> int:
        """One row per request."""
        return shape.num_reqs

    def pad(self, shape: BatchShape, *, num_tokens: int, num_reqs: int) -> None:
        """As for any step; a padding request has no slot, so nothing is kept of it."""
        super().pad(shape, num_tokens=num_tokens, num_reqs=num_reqs)
        if num_reqs > shape.num_reqs:
            self.slots[shape.num_reqs : num_reqs].fill_(-1)


class Verification:
    """The pass and its inputs; `verify` are its ops, given states, rows and views of the step."""

    def __init__(
        self,
        drafts: GraphedDrafts,
        *,
        mtp: int,
        views: ViewCache,
        verify: Callable[[Tensor, StepRows, StepViews], None],
    ) -> None:
        self._inputs = VerificationInputs(drafts.inputs, mtp=mtp)
        step = GreedyVerification(model=drafts.model, inputs=self._inputs, views=views, verify=verify)
        self._forward = drafts.capture_with(step, self._inputs)

    def run(self, hidden: Tensor, slots: Tensor, shape: BatchShape) -> Tensor:
        """States `[T, Dm]` and slots int32 `[N]` of a step → what `GreedyVerification.forward` returns.

        Valid until the next call.
        """
        self._inputs.hidden[: len(hidden)].copy_(hidden)
        self._inputs.slots[: len(slots)].copy_(slots)
        yielded, _ = self._forward.run(shape)
        return yielded


class GreedyVerification(WholePass):
    """From the states of the step in `inputs.hidden` to its tokens, and to the inputs of draft 0."""

    def __init__(
        self,
        *,
        model: DraftModel,
        inputs: VerificationInputs,
        views: ViewCache,
        verify: Callable[[Tensor, StepRows, StepViews], None],
    ) -> None:
        super().__init__(model)
        self._inputs, self._views, self._verify = inputs, views, verify

    def forward(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Tensor:
        """int64 `[N, 2 + mtp]`: tokens of each request, −1 behind the last, and how many."""
        inputs, tokens, count = self._inputs, batch.num_tokens, batch.block_table.shape[0]
        starts = inputs.starts[: count + 1]
        rows = StepRows(
            slots=inputs.slots[:count],
            query_start=starts,
            logits_start=starts,
            counts=inputs.ones[:count],
        )
        views = self._views.of_uniform(tokens, count, num_logits=tokens)
        self._verify(inputs.hidden[:tokens], rows, views)
        return views.yielded
