"""Breakable capture: a forward pass becomes captured segments with eager parts between them.

An eager part depends on the context lengths: it reads the live batch through `current_context`, slices what
it is given to the live rows, and writes into a buffer of its caller.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from functools import wraps
from inspect import signature
from types import TracebackType
from typing import Any, TypeVar, cast

from torch import Tensor

from paths.graphs.backend import Recording

Function = TypeVar("Function", bound=Callable[..., Any])


class BreakableCapture:
    """The capture of one forward pass, as a context. Raises RuntimeError inside another capture.

    inline: a break is captured like everything else (FULL).
    """

    def __init__(self, recording: Recording, *, inline: bool) -> None:
        self.recording = recording
        self.inline = inline
        self.segments = 0
        self.breaks = 0
        self.capturing = False  # whether a segment is open and what runs belongs to it
        self._token: Token[BreakableCapture | None] | None = None

    def __enter__(self) -> BreakableCapture:
        if _running.get() is not None:
            raise RuntimeError("a capture is already running: captures do not nest")
        self._begin()
        self._token = _running.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._token is not None, "entered before"
        _running.reset(self._token)
        self.capturing = False
        if error is None:
            self._end()
        else:
            self.recording.abort()

    def at_break(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        writes: Tensor | None = None,
    ) -> None:
        """End the segment, run the eager part, remember it with its arguments, begin the next segment.

        writes: the argument that it writes. Raises RuntimeError where it returns something: at replay nobody
        would take it.
        """
        args, kwargs = self.recording.cross(args, kwargs, writes=writes)
        self._end()
        self.capturing = False
        if function(*args, **kwargs) is not None:
            raise RuntimeError(
                f"{function.__qualname__} returned a value: an eager part writes into a buffer of its caller"
            )
        self.recording.eager(function, args, kwargs)
        self.breaks += 1
        self._begin()

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function as one instruction of the open segment; what it calls is its own business."""
        if self.recording.sees_kernels:
            return function(*args, **kwargs)
        self.capturing = False
        try:
            return self.recording.call(function, args, kwargs)
        finally:
            self.capturing = True

    def _begin(self) -> None:
        self.recording.begin()
        self.capturing = True

    def _end(self) -> None:
        self.recording.end()
        self.segments += 1


_running: ContextVar[BreakableCapture | None] = ContextVar("running_capture", default=None)


def running_capture() -> BreakableCapture | None:
    """The capture whose segment is open here: None in eager code, also inside a break."""
    capture = _running.get()
    return capture if capture is not None and capture.capturing else None


def break_output(like: Tensor, *shape: int) -> Tensor:
    """What the next break point will write: `shape` in the dtype of `like`, valid until the one after it."""
    capture = running_capture()
    if capture is None or capture.inline:
        return like.new_empty(shape)
    return capture.recording.break_output(like, shape)


def break_point(*, writes: str | None) -> Callable[[Function], Function]:
    """Marks a function as the eager part of a layer. Without a capture it is called as it is.

    writes: the parameter that it writes, a tensor of `break_output`; any other is a copy under CUDA graphs.
    Must be the outermost decorator. A break point called inside of another one belongs to it. Raises
    TypeError for a parameter that the function does not have.
    """

    def mark(function: Function) -> Function:
        parameters = signature(function)
        if writes is not None and writes not in parameters.parameters:
            raise TypeError(f"{function.__qualname__} has no parameter {writes!r} to write")

        @wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            capture = running_capture()
            if capture is None or capture.inline:
                return function(*args, **kwargs)
            given = parameters.bind(*args, **kwargs).arguments
            return capture.at_break(function, args, kwargs, writes=given[writes] if writes else None)

        return cast(Function, wrapper)

    return mark
