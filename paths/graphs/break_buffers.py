"""Memory that crosses the breaks of CUDA graphs, shared by all layers and all sizes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor


class BreakBuffers:
    """One buffer per place in a break, dtype and trailing shape; each graph has its first rows.

    Replays run one after the other and a break runs right behind its segment, so nothing in here is needed
    any more when the next break is reached. A buffer has as many rows as were ever asked for: capture the
    largest size first. One that is outgrown stays: earlier graphs have it, and its address is not given away.
    """

    def __init__(self) -> None:
        self._buffers: dict[Hashable, Tensor] = {}
        self._by_address: dict[int, Tensor] = {}  # of the storage; the outgrown too

    def has(self, place: Hashable, like: Tensor, shape: Sequence[int]) -> bool:
        """Whether `view` would allocate nothing."""
        key, rows = _key(place, like, shape)
        return key in self._buffers and self._buffers[key].shape[0] >= rows

    def view(self, place: Hashable, like: Tensor, shape: Sequence[int]) -> Tensor:
        """`shape`, in the dtype and on the device of `like`; allocated where there are too few rows."""
        key, rows = _key(place, like, shape)
        if not self.has(place, like, shape):
            made = torch.empty((rows, *shape[1:]), dtype=like.dtype, device=like.device)
            self._buffers[key] = self._by_address[made.untyped_storage().data_ptr()] = made
        return self._buffers[key][:rows].view(tuple(shape))

    def owns(self, tensor: Tensor) -> bool:
        """Whether it is a view of one of the buffers; a tensor without elements may pass for one."""
        return tensor.numel() == 0 or tensor.untyped_storage().data_ptr() in self._by_address


def _key(place: Hashable, like: Tensor, shape: Sequence[int]) -> tuple[Hashable, int]:
    """A tensor without dimensions is one row."""
    return (place, like.dtype, like.device, tuple(shape[1:])), shape[0] if shape else 1
