"""CUDA graphs: one per segment, captured on a side stream, all out of one pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor

from paths.graphs.backend import Recording, Replay


class CudaBackend:
    """Captures of one engine: the pool is shared because replays run one after the other."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._used_before = 0
        self._used = 0

    @contextmanager
    def session(self) -> Iterator[None]:
        """A side stream: the default stream cannot be captured. Waits on both sides."""
        torch.cuda.synchronize()
        self._used_before = torch.cuda.memory_reserved()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            yield
        torch.cuda.synchronize()
        self._used = torch.cuda.memory_reserved()

    def recording(self) -> Recording:
        return CudaRecording(self._pool)

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def pool_bytes(self) -> int:
        """Growth of the reserved memory over the session: what recordings keep and the output are in it."""
        return max(0, self._used - self._used_before)


class CudaRecording:
    """One forward pass: graph, eager part, graph, … in the order of execution on one stream."""

    sees_kernels = True

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._open: torch.cuda.CUDAGraph | None = None
        self._steps: list[Callable[[], None]] = []
        self._read_by_breaks: list[Tensor] = []  # strong: the pool hands out what nobody holds
        self._kept: list[Tensor] = []

    def begin(self) -> None:
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool)
        self._open = graph

    def end(self) -> None:
        graph, self._open = self._open, None
        assert graph is not None, "begin comes first"
        graph.capture_end()
        self._steps.append(graph.replay)

    def abort(self) -> None:
        graph, self._open = self._open, None
        if graph is not None:
            with suppress(RuntimeError):  # the failed capture's own error is on its way up
                graph.capture_end()

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return function(*args, **kwargs)

    def eager(self, function: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._steps.append(partial(function, *args, **kwargs))
        # not what arguments hold: weights and caches are no buffers of the graph, and are never poisoned
        self._read_by_breaks += [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor)]

    def keep(self, tensor: Tensor) -> None:
        self._kept.append(tensor)

    def finish(self) -> Replay:
        steps = tuple(self._steps)

        def run() -> None:
            for step in steps:
                step()

        return Replay(run=run, buffers=(*self._read_by_breaks, *self._kept), memory_bytes=0)
