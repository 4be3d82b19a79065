"""Greedy drafts behind draft 0 as one forward pass: a graph holds all of them, with what lies between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from paths.engine.batch import ForwardBatch, LayerCache
from paths.engine.context import ForwardContext
from paths.engine.static_inputs import DraftInputs
from paths.graphs.draft_pass import DraftModel

# (tokens [N] of a draft, its number, the batch) → keeps them, and makes the batch that of the next draft
Advance = Callable[[Tensor, int, ForwardBatch], None]


class DraftChain:
    """From the states of draft 0 in `inputs.hidden`, one row per request, to the last draft.

    Is `Capturable`. Drafts are the most likely tokens.
    """

    def __init__(self, model: DraftModel, inputs: DraftInputs, *, mtp: int, advance: Advance) -> None:
        self._model, self._inputs, self._mtp, self._advance = model, inputs, mtp, advance
        self.max_model_len = model.max_model_len
        self.recorded_ops: Any = getattr(model, "recorded_ops", {})

    def forward(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Tensor:
        """States [N, Dm] that the last draft was made from."""
        hidden = self._inputs.hidden[: batch.num_tokens]
        passes = [
            lambda step=step: self._model.draft(batch, hidden, caches, step=step)
            for step in range(1, self._mtp)
        ]
        return self._run(batch, hidden, passes)

    def num_breaks(self) -> int:
        return (self._mtp - 1) * self._model.num_draft_breaks()

    def context(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> ForwardContext:
        """Drafts behind the first select keys alike, so one context serves all."""
        return self._model.draft_context(batch, caches, step=1)

    def bind(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Callable[[], Tensor]:
        hidden = self._inputs.hidden[: batch.num_tokens]
        passes = [self._model.bind_draft(batch, hidden, caches, step=step) for step in range(1, self._mtp)]
        return lambda: self._run(batch, hidden, passes)

    def _run(self, batch: ForwardBatch, hidden: Tensor, passes: Sequence[Callable[[], Tensor]]) -> Tensor:
        for step, draft in enumerate(passes):
            self._keep(batch, hidden, step)
            hidden.copy_(draft())
        self._keep(batch, hidden, len(passes))
        return hidden

    def _keep(self, batch: ForwardBatch, hidden: Tensor, step: int) -> None:
        self._advance(self._model.draft_logits(hidden, step=step).argmax(dim=-1), step, batch)
