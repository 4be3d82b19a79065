"""The definition of rms_norm, row by row in float32."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x `[T, D]`, weight float32 `[D]` → `[T, D]` in x's dtype; the weight multiplies before the cast."""
    out = torch.zeros_like(x)
    for t in range(x.shape[0]):
        row = x[t].float()
        inverse = 1.0 / torch.sqrt(row.square().mean() + eps)
        out[t] = (row * inverse * weight).to(x.dtype)
    return out
