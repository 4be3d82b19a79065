"""Drafts of an MTP layer as forward passes of their own, which graphs capture like the target's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from paths.engine.batch import ForwardBatch, LayerCache
from paths.engine.context import ForwardContext
from paths.engine.static_inputs import DraftInputs


@runtime_checkable
class DraftModel(Protocol):
    """What a model must offer so that its drafts can be captured, as `Capturable` for its forward pass."""

    max_model_len: int

    def draft(
        self, batch: ForwardBatch, hidden: Tensor, caches: Sequence[LayerCache], *, step: int = 0
    ) -> Tensor:
        """As in `paths.engine.runner.Model`."""

    def draft_logits(self, hidden: Tensor, *, step: int = 0) -> Tensor:
        """As in `paths.engine.runner.Model`."""

    def num_draft_breaks(self) -> int:
        """Break points that one draft meets."""

    def draft_context(
        self, batch: ForwardBatch, caches: Sequence[LayerCache], *, step: int
    ) -> ForwardContext:
        """What the break points and opaque ops of a draft over `batch` look up."""

    def bind_draft(
        self, batch: ForwardBatch, hidden: Tensor, caches: Sequence[LayerCache], *, step: int
    ) -> Callable[[], Tensor]:
        """The draft over these very tensors, to be called inside of their context."""


class DraftPass:
    """Draft `step` of a model, from the hidden states in `inputs`. Is `Capturable`."""

    def __init__(self, model: DraftModel, inputs: DraftInputs, *, step: int) -> None:
        self._model, self._inputs, self.step = model, inputs, step
        self.max_model_len = model.max_model_len
        self.recorded_ops: Any = getattr(model, "recorded_ops", {})

    def forward(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Tensor:
        """States [N, Dm] of the draft."""
        return self._model.draft(batch, self._hidden(batch), caches, step=self.step)

    def num_breaks(self) -> int:
        return self._model.num_draft_breaks()

    def context(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> ForwardContext:
        return self._model.draft_context(batch, caches, step=self.step)

    def bind(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Callable[[], Tensor]:
        return self._model.bind_draft(batch, self._hidden(batch), caches, step=self.step)

    def _hidden(self, batch: ForwardBatch) -> Tensor:
        return self._inputs.hidden[: batch.num_tokens]


class GreedyDraftPass(DraftPass):
    """A draft, and its most likely token: both are left in `inputs`, where the next draft looks for them."""

    def forward(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Tensor:
        """Tokens int64 [N, 1]."""
        return self._feed(super().forward(batch, caches))

    def bind(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Callable[[], Tensor]:
        draft = super().bind(batch, caches)
        return lambda: self._feed(draft())

    def _feed(self, states: Tensor) -> Tensor:
        hidden = self._inputs.hidden[: len(states)]
        hidden.copy_(states)
        tokens = self._model.draft_logits(hidden, step=self.step).argmax(dim=-1, keepdim=True)
        self._inputs.input_ids[: len(states)].copy_(tokens[:, 0])
        return tokens
