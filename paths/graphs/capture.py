"""Captures every graph of a configuration at start-up."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from paths.api import UserError
from paths.engine.batch import LayerCache
from paths.engine.context import ForwardContext, forward_context
from paths.engine.static_inputs import StaticInputs
from paths.graphs.backend import GraphBackend, Replay
from paths.graphs.breakable import BreakableCapture
from paths.graphs.capturable import Capturable
from paths.graphs.config import GraphMode
from paths.graphs.kernel_hook import KernelHook
from paths.graphs.shape import Descriptor


@dataclass(frozen=True, kw_only=True)
class CaptureReport:
    """What capturing cost."""

    seconds: float = 0.0
    graphs: int = 0
    memory_bytes: int = 0  # of the graphs' own buffers or of their pool, and of the shared output
    breaks: int = 0  # of one forward pass in a PIECEWISE graph


@dataclass(frozen=True, kw_only=True)
class CapturedGraph:
    """A replayable forward pass over the first rows of the static inputs."""

    descriptor: Descriptor
    context: ForwardContext  # of the padded batch that was captured
    replay: Replay
    calls: Sequence[tuple[dict[str, int], str, int]]  # counters of the kernels, and what a replay adds
    segments: int
    breaks: int

    def run(self) -> None:
        """Inside a forward context: the live batch where there are breaks."""
        self.replay.run()
        for counts, implementation, calls in self.calls:
            counts[implementation] += calls


class GraphCapturer:
    """Captures one forward pass per descriptor into a shared output."""

    def __init__(
        self, *, model: Capturable, caches: Sequence[LayerCache], inputs: StaticInputs, backend: GraphBackend
    ) -> None:
        self._model = model
        self._caches = caches
        self._inputs = inputs
        self._backend = backend
        self.output: Tensor | None = None  # [largest size, Dm]: hidden states of the latest replay
        self.report = CaptureReport()

    def capture(self, descriptors: Sequence[Descriptor]) -> dict[Descriptor, CapturedGraph]:
        """In the given order. Raises UserError for PIECEWISE without break points."""
        if any(d.mode is GraphMode.PIECEWISE for d in descriptors) and self._model.num_breaks() == 0:
            raise UserError(
                "PIECEWISE graphs cannot be had: the model is neither compiled nor breakable; use FULL, NONE"
            )
        started = time.perf_counter()
        self._inputs.clear()  # padding only: a capture must write to no block
        rows = max(descriptor.num_tokens for descriptor in descriptors)
        graphs: dict[Descriptor, CapturedGraph] = {}
        with torch.inference_mode(), _frozen_garbage(), self._backend.session():
            for descriptor in descriptors:
                graphs[descriptor] = self._capture_one(descriptor, rows)
        self.report = CaptureReport(
            seconds=time.perf_counter() - started,
            graphs=len(graphs),
            memory_bytes=self._memory_bytes(graphs),
            breaks=max(graph.breaks for graph in graphs.values()),
        )
        return graphs

    def _memory_bytes(self, graphs: dict[Descriptor, CapturedGraph]) -> int:
        pool = self._backend.pool_bytes()
        if pool is not None:
            return pool
        assert self.output is not None, "the first capture makes it"
        return sum(graph.replay.memory_bytes for graph in graphs.values()) + self.output.nbytes

    def _capture_one(self, descriptor: Descriptor, rows: int) -> CapturedGraph:
        longest = self._model.max_model_len
        batch = self._inputs.padded(
            descriptor.num_tokens,
            self._inputs.num_queries(descriptor.num_tokens, descriptor.num_reqs),
            max_length=longest if descriptor.sparse else min(self._inputs.index_topk, longest),
        )
        context = self._model.context(batch, self._caches)
        kernels = context.kernels
        with forward_context(context):
            forward = self._model.bind(batch, self._caches)
            hidden = forward()
            self._backend.synchronize()  # what the warm-up still uses must not be handed to the capture
            if self.output is None:
                self.output = hidden.new_empty(rows, hidden.shape[1])
            output = self.output[: len(hidden)]
            recording = self._backend.recording()
            capture = BreakableCapture(recording, inline=descriptor.mode is GraphMode.FULL)
            hook = KernelHook(capture, kernels=kernels, inputs=self._inputs, caches=self._caches)
            kernels.recorder = hook
            try:
                with capture:
                    # a graph's own result is valid until another graph uses the pool
                    output.copy_(forward())
            finally:
                kernels.recorder = None
        self._check_breaks(descriptor, capture)
        return CapturedGraph(
            descriptor=descriptor,
            context=context,
            replay=recording.finish(),
            calls=[(kernels.calls[op], name, calls) for (op, name), calls in hook.calls.items()],
            segments=capture.segments,
            breaks=capture.breaks,
        )

    def _check_breaks(self, descriptor: Descriptor, capture: BreakableCapture) -> None:
        wanted = self._model.num_breaks() if descriptor.mode is GraphMode.PIECEWISE else 0
        if capture.breaks != wanted or capture.segments != wanted + 1:
            raise RuntimeError(
                f"{descriptor.mode} graph of {descriptor.num_tokens} tokens: {capture.breaks} breaks and "
                f"{capture.segments} segments instead of {wanted} and {wanted + 1}"
            )


@contextmanager
def _frozen_garbage() -> Iterator[None]:
    """Captures make many objects that stay: the collector need not look at them again and again."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
