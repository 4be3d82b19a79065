"""Runs a model's forward pass the way the graph configuration says, and counts how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from paths.engine.batch import LayerCache
from paths.engine.runner import Model
from paths.engine.static_inputs import StaticInputs
from paths.graphs.config import GraphConfig, GraphMode
from paths.graphs.shape import BatchShape


@dataclass(kw_only=True)
class GraphCounts:
    """Since start-up; warm-up and capture do not count."""

    steps: dict[str, int] = field(default_factory=lambda: {mode.value: 0 for mode in GraphMode})
    tokens_padded: int = 0  # rows computed, padding included
    misses: dict[str, int] = field(default_factory=dict)  # why a step ran below the configured mode → steps


@dataclass(frozen=True, kw_only=True)
class CaptureReport:
    """What capturing cost."""

    seconds: float = 0.0
    graphs: int = 0
    memory_bytes: int = 0
    breaks: int = 0  # of one forward pass in a PIECEWISE graph


class GraphedForward:
    """The forward pass of a runner: replay where a graph fits, eager where none does."""

    def __init__(
        self, *, model: Model, caches: Sequence[LayerCache], inputs: StaticInputs, config: GraphConfig
    ) -> None:
        self._model = model
        self._caches = caches
        self._inputs = inputs
        self._config = config
        self.counts = GraphCounts()
        self.captured = CaptureReport()

    def capture(self) -> CaptureReport:
        """Capture every graph of the configuration, once, after compilation."""
        return self.captured

    def run(self, shape: BatchShape) -> tuple[Tensor, GraphMode]:
        """Hidden states [num_tokens, Dm] of the live rows in the static inputs, and how they were made.

        The tensor is valid until the next call.
        """
        hidden = self._model.forward(self._inputs.batch(shape), self._caches)
        self.counts.steps[GraphMode.NONE] += 1
        self.counts.tokens_padded += shape.num_tokens
        return hidden, GraphMode.NONE
