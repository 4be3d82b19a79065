"""What a model must offer so that its forward pass can be captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from paths.engine.batch import ForwardBatch, LayerCache
from paths.engine.context import ForwardContext


@runtime_checkable
class Capturable(Protocol):
    """Beside `paths.engine.runner.Model`."""

    max_model_len: int

    def num_breaks(self) -> int:
        """Break points that one forward pass meets; 0 for a model that can be captured as a whole only."""

    def context(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> ForwardContext:
        """What the break points and opaque ops of a pass over `batch` look up."""

    def bind(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Callable[[], Tensor]:
        """The forward pass over these very tensors, to be called inside of their context."""
