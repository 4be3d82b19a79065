"""A pass that looks nothing up and has no break points, to be captured beside the drafts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from paths.engine.batch import ForwardBatch, LayerCache
from paths.engine.context import ForwardContext
from paths.graphs.draft_pass import DraftModel


class WholePass(ABC):
    """Is `Capturable`, in FULL graphs. model: whose kernels it calls."""

    def __init__(self, model: DraftModel) -> None:
        self._model = model
        self.max_model_len = model.max_model_len

    @abstractmethod
    def forward(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Tensor:
        """One row per request."""

    def num_breaks(self) -> int:
        """None."""
        return 0

    def context(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> ForwardContext:
        """For the kernels in it, which a capture watches; the pass itself looks nothing up."""
        return self._model.draft_context(batch, caches, step=0)

    def bind(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Callable[[], Tensor]:
        """`forward` over these tensors, for a capture."""
        return partial(self.forward, batch, caches)
