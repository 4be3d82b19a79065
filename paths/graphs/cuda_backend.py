"""CUDA graphs: one per segment, captured on a side stream, all out of one pool."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor

from paths.graphs.backend import Recording, Replay
from paths.graphs.break_buffers import BreakBuffers
from paths.graphs.generated import GeneratedCode


class CudaBackend:
    """Captures of one engine: the pool is shared because replays run one after the other."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._break_buffers = BreakBuffers()
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
        return CudaRecording(self._pool, self._break_buffers)

    def synchronize(self) -> None:
        torch.cuda.synchronize()

    def pool_bytes(self) -> int:
        """Growth of the reserved memory over the session: the buffers of breaks and the output are in it."""
        return max(0, self._used - self._used_before)


class CudaRecording:
    """One forward pass: graph, eager part, graph, … in the order of execution on one stream."""

    sees_kernels = True

    def __init__(self, pool: Any, buffers: BreakBuffers) -> None:
        self._pool = pool
        self._buffers = buffers
        self._open: torch.cuda.CUDAGraph | None = None
        self._steps: list[Callable[[], None]] = []
        self._outputs = 0  # of the next break
        self._views: list[Tensor] = []  # of the break buffers, all but results with strides of their own

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

    def generated(
        self,
        code: GeneratedCode,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        count: Callable[[int], None],
    ) -> Any:
        return run(*args)

    def break_output(self, like: Tensor, shape: Sequence[int]) -> Tensor:
        place = ("output", self._outputs)
        self._outputs += 1
        return self._shared({place: (like, shape)})[place]

    def cross(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, writes: Tensor | None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Copies, as the pool reuses what nobody holds, and to hold it is to hold it per layer and size.

        Not what arguments hold: weights and caches are there before the capture.
        """
        if writes is not None and not self._buffers.owns(writes):
            raise RuntimeError("an eager part writes what the next segment would not read: use break_output")
        given: dict[Hashable, Any] = dict([*enumerate(args), *kwargs.items()])
        crossing = {
            place: arg
            for place, arg in given.items()
            if isinstance(arg, Tensor) and not self._buffers.owns(arg)
        }
        views = self._shared({place: (arg, arg.shape) for place, arg in crossing.items()})
        for place, arg in crossing.items():
            views[place].copy_(arg)
        return (
            tuple(views.get(place, arg) for place, arg in enumerate(args)),
            {name: views.get(name, arg) for name, arg in kwargs.items()},
        )

    def eager(self, function: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._steps.append(partial(function, *args, **kwargs))
        self._outputs = 0

    def keep(self, place: int, tensor: Tensor) -> Tensor:
        if not tensor.is_contiguous():  # the next piece was compiled for these strides
            self._views.append(tensor)
            return tensor
        result = ("result", place)
        return self._shared({result: (tensor, tensor.shape)})[result].copy_(tensor)

    def _shared(self, wanted: Mapping[Hashable, tuple[Tensor, Sequence[int]]]) -> dict[Hashable, Tensor]:
        """Views of the break buffers; what an open segment allocates would be the pool's, so it is cut."""
        cut = self._open is not None and not all(
            self._buffers.has(place, like, shape) for place, (like, shape) in wanted.items()
        )
        if cut:
            self.end()
        views = {place: self._buffers.view(place, like, shape) for place, (like, shape) in wanted.items()}
        if cut:
            self.begin()
        self._views += views.values()
        return views

    def finish(self) -> Replay:
        steps = tuple(self._steps)

        def run() -> None:
            for step in steps:
                step()

        return Replay(run=run, buffers=tuple(self._views), memory_bytes=0)
