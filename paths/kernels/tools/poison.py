"""Memory that tells on kernels: what they forget to write is NaN, what they write around it is noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

NO_INDEX = -(2**30)
GUARD_BYTES = 4096  # in front of and behind every tensor; keeps its alignment
GUARD_VALUE = 0xA5


class Guards:
    """The memory around every tensor that was handed out."""

    def __init__(self) -> None:
        self._guarded: list[tuple[Tensor, int]] = []

    def wrap(self, tensor: Tensor) -> Tensor:
        """A tensor like this one between two guards; as it is where it is not contiguous."""
        if tensor.numel() == 0 or not tensor.is_contiguous() or tensor.device.type == "meta":
            return tensor
        block = torch.full(
            (tensor.nbytes + 2 * GUARD_BYTES,), GUARD_VALUE, dtype=torch.uint8, device=tensor.device
        )
        self._guarded.append((block, tensor.nbytes))
        return block[GUARD_BYTES : GUARD_BYTES + tensor.nbytes].view(tensor.dtype).view(tensor.shape)

    def release(self) -> bool:
        """Whether every guard is as it was; forgets them."""
        intact = True
        for block, size in self._guarded:
            around = torch.cat([block[:GUARD_BYTES], block[GUARD_BYTES + size :]])
            intact = intact and bool((around == GUARD_VALUE).all())
        self._guarded.clear()
        return intact


@contextmanager
def poisoned_memory() -> Iterator[Guards]:
    """Inside, torch.empty and its relatives return guarded poison."""
    guards = Guards()
    names = ((torch, "empty"), (torch, "empty_like"), (torch, "empty_strided"), (Tensor, "new_empty"))
    saved = [(owner, name, getattr(owner, name)) for owner, name in names]
    for owner, name, make in saved:
        setattr(owner, name, _poisoning(make, guards))
    try:
        yield guards
    finally:
        for owner, name, make in saved:
            setattr(owner, name, make)


def poison(tensor: Tensor) -> Tensor:
    """Fill in place: 0xFF bytes are NaN in every float format; integers get an index that no tensor has."""
    if tensor.device.type == "meta" or tensor.numel() == 0:
        return tensor
    if tensor.dtype in (torch.int32, torch.int64):
        return tensor.fill_(NO_INDEX)
    if tensor.dtype.is_floating_point and not tensor.is_contiguous():
        return tensor.fill_(float("nan"))
    if tensor.dtype.is_floating_point or tensor.dtype is torch.uint8:
        tensor.view(torch.uint8).fill_(0xFF)
    return tensor


def _poisoning(make: Callable[..., Tensor], guards: Guards) -> Callable[..., Tensor]:
    def poisoned(*args: object, **kwargs: object) -> Tensor:
        return poison(guards.wrap(make(*args, **kwargs)))

    return poisoned
