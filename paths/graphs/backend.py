"""What a graph backend does: one forward pass becomes segments that replay without the model's Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from paths.graphs.generated import GeneratedCode


@dataclass(frozen=True, kw_only=True)
class Replay:
    """One captured forward pass."""

    run: Callable[[], None]
    buffers: Sequence[Tensor]  # storage that outlives a replay and that crosses its breaks
    memory_bytes: int  # of those buffers; 0 where `pool_bytes` has them


class Recording(Protocol):
    """One forward pass under capture: segments and eager parts in the order of execution."""

    sees_kernels: bool  # whether a kernel's own operations are captured, whatever it is written in

    def begin(self) -> None:
        """Start a segment."""

    def end(self) -> None:
        """Finish the segment."""

    def abort(self) -> None:
        """Close an open segment after an exception."""

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function in the open segment, which replay calls as a whole where it cannot look inside."""

    def generated(
        self,
        code: GeneratedCode,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        count: Callable[[int], None],
    ) -> Any:
        """Run generated code in the open segment, which then holds its calls.

        A replay calls `count` with the number of times that it has run code of that count.
        """

    def break_output(self, like: Tensor, shape: Sequence[int]) -> Tensor:
        """In the open segment: what the next eager part will write, in the dtype of `like`."""

    def cross(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, writes: Tensor | None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Last in the open segment: what the eager part behind it is given, in place of these arguments.

        Raises RuntimeError where `writes`, the one that it writes, could not be read behind it.
        """

    def eager(self, function: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Append an eager part behind the last segment. It has run already; its arguments stay alive."""

    def keep(self, place: int, tensor: Tensor) -> Tensor:
        """In an eager part: the buffer for its `place`-th result, which holds `tensor` now.

        Valid until the next break.
        """

    def finish(self) -> Replay:
        """The replay of everything recorded."""


class GraphBackend(Protocol):
    """Makes recordings that share one pool of memory."""

    def session(self) -> AbstractContextManager[None]:
        """Surrounds warm-ups and captures of all sizes."""

    def recording(self) -> Recording:
        """A recording of one forward pass."""

    def synchronize(self) -> None:
        """Wait until no kernel of a warm-up is running."""

    def pool_bytes(self) -> int | None:
        """All memory that the session has taken; None where buffers are counted one by one."""
