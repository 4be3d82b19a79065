"""add_rms_norm for any device and for torch.compile."""

from __future__ import annotations

import torch
from torch import Tensor


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x, residual `[T, D]` → (normed, new residual)."""
    total = x.float() + residual.float()
    inverse = torch.rsqrt(total.square().mean(-1, keepdim=True) + eps)
    return (total * inverse * weight).to(x.dtype), total.to(residual.dtype)
