"""All greedy drafts of a step as one forward pass: draft 0 over its rows, and the chain behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from paths.engine.batch import ForwardBatch, LayerCache
from paths.engine.context import ForwardContext, part_context
from paths.engine.static_inputs import DraftInputs
from paths.graphs.draft_chain import DraftChain
from paths.graphs.draft_pass import DraftModel


class JoinedDrafts:
    """From the states of the step in `inputs.hidden` to the last draft. Is `Capturable`, in FULL graphs.

    The batch is that of draft 0, its longest length that of the last draft.
    """

    def __init__(self, model: DraftModel, inputs: DraftInputs, chain: DraftChain) -> None:
        self._model, self._inputs, self._chain = model, inputs, chain
        self.max_model_len = model.max_model_len
        self.recorded_ops: Any = getattr(model, "recorded_ops", {})

    def forward(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Tensor:
        """States [N, Dm] that the last draft was made from, one row per request."""
        states = self._model.draft(batch, self._inputs.hidden[: batch.num_tokens], caches, step=0)
        self._inputs.hidden[: len(states)].copy_(states)
        return self._chain.forward(self._later(batch), caches)

    def num_breaks(self) -> int:
        """None: batches of two kinds cannot share the context that a break looks up."""
        return 0

    def context(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> ForwardContext:
        """Of draft 0."""
        return self._model.draft_context(batch, caches, step=0)

    def bind(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Callable[[], Tensor]:
        first = self._model.bind_draft(batch, self._inputs.hidden[: batch.num_tokens], caches, step=0)
        later = self._later(batch)
        context = self._chain.context(later, caches)
        chain = self._chain.bind(later, caches)

        def run() -> Tensor:
            states = first()
            self._inputs.hidden[: len(states)].copy_(states)
            with part_context(context):
                return chain()

        return run

    def _later(self, batch: ForwardBatch) -> ForwardBatch:
        """One row per request."""
        count = batch.queries.num_tokens
        return self._inputs.padded(count, count, max_length=batch.max_length)
