"""Checks of tensor arguments before a launch: one line that says what came and what is allowed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def check_tensor(
    op: str,
    name: str,
    tensor: Tensor,
    *,
    dtype: torch.dtype | Sequence[torch.dtype],
    shape: Sequence[int | None],
    contiguous: bool | None = None,
) -> None:
    """Raises ValueError for another dtype or shape (None is any size), or a stride that kernels cannot read.

    contiguous: the whole tensor (default for one dimension), or the rows of the last dimension only.
    """
    allowed = (dtype,) if isinstance(dtype, torch.dtype) else tuple(dtype)
    if tensor.dtype not in allowed:
        names = " or ".join(str(one) for one in allowed)
        raise ValueError(f"{op}: {name} has dtype {tensor.dtype}, allowed is {names}")
    fits = tensor.ndim == len(shape) and all(
        want is None or have == want for have, want in zip(tensor.shape, shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if want is None else str(want) for want in shape)
        raise ValueError(f"{op}: {name} has shape {tuple(tensor.shape)}, allowed is ({wanted})")
    whole = tensor.ndim == 1 if contiguous is None else contiguous
    if whole and not tensor.is_contiguous():
        raise ValueError(f"{op}: {name} has strides {tensor.stride()}, allowed is a contiguous tensor")
    if not whole and tensor.ndim and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(f"{op}: {name} has strides {tensor.stride()}, allowed is a last stride of 1")
