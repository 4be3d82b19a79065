"""Runs a model's forward pass the way the graph configuration says, and counts how."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from paths.api import UserError
from paths.engine.batch import LayerCache
from paths.engine.context import forward_context
from paths.engine.runner import ForwardPass
from paths.engine.static_inputs import StaticInputs
from paths.graphs.backend import GraphBackend
from paths.graphs.capturable import Capturable
from paths.graphs.capture import CapturedGraph, CaptureReport, GraphCapturer
from paths.graphs.config import GraphConfig, GraphMode
from paths.graphs.cuda_backend import CudaBackend
from paths.graphs.debug import ReplayChecks
from paths.graphs.dispatch import Dispatcher
from paths.graphs.native import load_native
from paths.graphs.recorded import RecordedBackend
from paths.graphs.shape import BatchShape, Descriptor
from paths.kernels.cpp import CppUnavailable
from paths.kernels.registry import Kernels

_Kind = tuple[int, int, int, bool]  # of a uniform batch: tokens, requests, query length, keys are ranked

__all__ = ["CaptureReport", "GraphCounts", "GraphedForward"]


@dataclass(kw_only=True)
class GraphCounts:
    """Of every step, those of the warm-up too; a capture is no step. Who reads them takes differences."""

    steps: dict[str, int] = field(default_factory=lambda: {mode.value: 0 for mode in GraphMode})
    tokens_padded: int = 0  # rows computed, padding included
    misses: dict[str, int] = field(default_factory=dict)  # why a step ran below the configured mode → steps


class GraphedForward:
    """The forward pass of a runner: replay where a graph fits, eager where none does.

    backend: what captures; by default CUDA graphs on a CUDA device and recorded replay elsewhere.
    Raises UserError for a configuration that the model cannot serve.
    """

    def __init__(
        self,
        *,
        model: ForwardPass,
        caches: Sequence[LayerCache],
        inputs: StaticInputs,
        config: GraphConfig,
        backend: GraphBackend | None = None,
    ) -> None:
        self._model = model
        self._caches = caches
        self._inputs = inputs
        self._config = config
        self._graphs: dict[Descriptor, CapturedGraph] = {}
        self._found: dict[_Kind, tuple[CapturedGraph | None, str | None]] = {}
        self._output: Tensor | None = None
        self._checks: ReplayChecks | None = None
        self._closed = False
        self.counts = GraphCounts()
        self.captured = CaptureReport()
        self._dispatcher: Dispatcher | None = None
        if config.captures:
            capturable = self._capturable = _capturable(model)
            kernels = capturable.context(inputs.padded(1, 1, max_length=1), caches).kernels
            backend = backend or _backend_for(inputs, capturable, kernels)
            if config.decode is GraphMode.FULL and isinstance(backend, CudaBackend):
                _refuse_waits(kernels, ranks=capturable.max_model_len > inputs.index_topk)
            self._capturer = GraphCapturer(
                model=capturable,
                caches=caches,
                inputs=inputs,
                backend=backend,
            )
            self._dispatcher = Dispatcher(
                config,
                max_num_tokens=inputs.max_tokens,
                max_num_reqs=inputs.max_reqs,
                index_topk=inputs.index_topk,
                max_model_len=capturable.max_model_len,
            )

    def capture(self) -> CaptureReport:
        """Capture every graph of the configuration, once, after compilation and before the first step.

        Raises RuntimeError later: what a graph would read then belongs to requests.
        """
        if self._closed:
            raise RuntimeError("graphs are captured at start-up, once, before the first step")
        self._closed = True
        if self._dispatcher is None or not self._dispatcher.descriptors:
            return self.captured
        self._graphs = self._capturer.capture(self._dispatcher.descriptors)
        self._output = self._capturer.output
        assert self._output is not None, "at least one graph was captured"
        if self._config.debug:
            self._checks = ReplayChecks(self._inputs, self._output)
        self.captured = self._capturer.report
        return self.captured

    def run(self, shape: BatchShape) -> tuple[Tensor, GraphMode]:
        """Hidden states [N, Dm] of the live rows in the static inputs, and how they were made.

        The tensor is valid until the next call. Padding rows of the static inputs are refilled here.
        """
        self._closed = True
        graph = None if self._dispatcher is None else self._find(self._dispatcher, shape)
        with nullcontext() if torch.is_inference_mode_enabled() else torch.inference_mode():
            hidden = self._eager(shape) if graph is None else self._replay(graph, shape)
        mode = GraphMode.NONE if graph is None else graph.descriptor.mode
        self.counts.steps[mode] += 1
        self.counts.tokens_padded += shape.num_tokens if graph is None else graph.descriptor.num_tokens
        return hidden, mode

    def _find(self, dispatcher: Dispatcher, shape: BatchShape) -> CapturedGraph | None:
        graph, reason = self._look_up(dispatcher, shape)
        if reason is not None:
            self.counts.misses[reason] = self.counts.misses.get(reason, 0) + 1
        return graph

    def _look_up(self, dispatcher: Dispatcher, shape: BatchShape) -> tuple[CapturedGraph | None, str | None]:
        """The graph and why there is no better one; remembered for decode steps, of which few kinds exist."""
        kind: _Kind | None = None
        if shape.query_len is not None:
            sparse = shape.sparse(self._inputs.index_topk)
            kind = (shape.num_tokens, shape.num_reqs, shape.query_len, sparse)
            if kind in self._found:
                return self._found[kind]
        descriptor, reason = dispatcher.dispatch(shape)
        graph = self._graphs.get(descriptor)
        if graph is None and descriptor.mode is not GraphMode.NONE:
            reason = f"{descriptor.mode}: capture was not called"
        if kind is not None:
            self._found[kind] = (graph, reason)
        return graph, reason

    def _eager(self, shape: BatchShape) -> Tensor:
        if self._checks is None:
            return self._model.forward(self._inputs.batch(shape), self._caches)
        self._checks.expire()
        return self._checks.hand_out(self._model.forward(self._inputs.batch(shape), self._caches))

    def _replay(self, graph: CapturedGraph, shape: BatchShape) -> Tensor:
        descriptor = graph.descriptor
        self._inputs.pad(shape, num_tokens=descriptor.num_tokens, num_reqs=descriptor.num_reqs)
        if self._checks is not None:
            self._checks.before(graph, shape)
        context = graph.context  # a compiled piece that is one instruction looks its ops' context up
        if graph.breaks:
            context = self._capturable.context(self._inputs.batch(shape), self._caches)
        with forward_context(context):
            graph.run()
        assert self._output is not None, "graphs write into it"
        hidden = self._output[: self._inputs.num_outputs(shape)]
        if self._checks is None:
            return hidden
        self._checks.after(hidden)
        return self._checks.hand_out(hidden)


def _capturable(model: Any) -> Capturable:
    if not isinstance(model, Capturable):
        raise UserError(f"{type(model).__name__} cannot be captured into graphs: use graph mode NONE")
    return model


def _refuse_waits(kernels: Kernels, *, ranks: bool) -> None:
    """A stream that is captured cannot be waited for. ranks: whether keys are ever ranked, by index_topk.

    The other ops that depend on lengths are called by no model.
    """
    for op in ("sparse_mla", "index_topk") if ranks else ("sparse_mla",):
        name = kernels.implementations[op]
        if name != "triton":
            raise UserError(
                f"kernel {op}={name} waits for the GPU, so decode steps cannot be captured into FULL graphs: "
                "set path.options.graphs=piecewise or none"
            )


def _backend_for(inputs: StaticInputs, model: Capturable, kernels: Kernels) -> GraphBackend:
    if inputs.device.type == "cuda":
        return CudaBackend()
    inner: Mapping[Any, Callable[..., Any]] = getattr(model, "recorded_ops", {})
    if "cpp" not in kernels.implementations.values():
        return RecordedBackend(inner)
    try:
        return RecordedBackend(inner, load_native())
    except CppUnavailable as error:
        kernels.notes.append(f"graphs: replayed in Python instead of C++, {error}")
        return RecordedBackend(inner)
