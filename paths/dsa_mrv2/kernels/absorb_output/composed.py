"""absorb_output in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from paths.kernels.registry import Kernels


def absorb_output(kernels: Kernels, o: Tensor, w_uv: Tensor, out: Tensor) -> None:
    """o `[T, H, C]`, w_uv `[H, V, C]`; writes out `[T, H × V]`."""
    if o.shape[0]:
        heads = out.unflatten(1, w_uv.shape[:2]).transpose(0, 1)
        torch.bmm(o.transpose(0, 1), w_uv.transpose(1, 2), out=heads)
