"""What opaque ops need of the running forward pass: the batch, the caches and the kernels.

A compiled model hands its opaque ops tensors and a layer number only; the rest they look up here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from paths.engine.batch import ForwardBatch, LayerCache
from paths.kernels.registry import Kernels


@dataclass(frozen=True, kw_only=True)
class ForwardContext:
    """One forward pass.

    hadamard: index queries and keys are rotated. keep_selection: the batch's selection was made before this
    pass, nothing is ranked.
    """

    batch: ForwardBatch
    caches: Sequence[LayerCache]
    kernels: Kernels
    index_topk: int
    hadamard: bool
    keep_selection: bool = False


_current: ContextVar[ForwardContext | None] = ContextVar("forward_context", default=None)


@contextmanager
def forward_context(context: ForwardContext) -> Iterator[None]:
    """Make `context` current. Raises RuntimeError inside another forward pass."""
    if _current.get() is not None:
        raise RuntimeError("a forward pass is already running: forward contexts do not nest")
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def part_context(context: ForwardContext) -> Iterator[None]:
    """For a part of the running forward pass with a batch of its own. Raises RuntimeError outside of one."""
    current_context()
    token = _current.set(context)
    try:
        yield
    finally:
        _current.reset(token)


def current_context() -> ForwardContext:
    """The running forward pass. Raises RuntimeError outside of one."""
    context = _current.get()
    if context is None:
        raise RuntimeError("no forward pass is running: call the op inside forward_context")
    return context
