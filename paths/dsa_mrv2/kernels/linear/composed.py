"""linear in torch."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from paths.kernels.registry import Kernels


def linear(kernels: Kernels, x: Tensor, w: Tensor) -> Tensor:
    """x `[T, D]`, w `[N, D]` → `[T, N]`, float32 accumulation."""
    return functional.linear(x, w)
