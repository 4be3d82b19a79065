"""The definition of add_rms_norm, row by row in float32."""

from __future__ import annotations

import torch
from torch import Tensor


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x, residual `[T, D]` → (normed, new residual).

    The float32 sum is normed; the residual is stored in its dtype.
    """
    normed, total = torch.zeros_like(x), torch.zeros_like(residual)
    for t in range(x.shape[0]):
        row = x[t].float() + residual[t].float()
        inverse = 1.0 / torch.sqrt(row.square().mean() + eps)
        normed[t] = (row * inverse * weight).to(x.dtype)
        total[t] = row.to(residual.dtype)
    return normed, total
