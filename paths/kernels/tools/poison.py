"""Uninitialised memory becomes NaN (and indices that cannot exist), so that a forgotten row shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

NO_INDEX = -(2**30)


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Inside, torch.empty and its relatives return poison."""
    saved = [
        (owner, name, getattr(owner, name))
        for owner, name in (
            (torch, "empty"),
            (torch, "empty_like"),
            (torch, "empty_strided"),
            (Tensor, "new_empty"),
        )
    ]
    for owner, name, make in saved:
        setattr(owner, name, _poisoning(make))
    try:
        yield
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


def _poisoning(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def poisoned(*args: object, **kwargs: object) -> Tensor:
        return poison(make(*args, **kwargs))

    return poisoned
