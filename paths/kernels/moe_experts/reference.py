"""The definition of moe_experts, one token and expert at a time in float32."""

from __future__ import annotations

import torch
from torch import Tensor


def moe_experts(x: Tensor, ids: Tensor, weights: Tensor, w13: Tensor, w2: Tensor) -> Tensor:
    """x `[T, D]`, ids int32 and weights float32 `[T, K]`, w13 `[E, 2I, D]`, w2 `[E, D, I]` → `[T, D]`.

    w13 holds the gate rows first. Sum over the K experts of weight × W_down(silu(W_gate x) × W_up x), in
    float32, then x's dtype.
    """
    width = w2.shape[-1]
    out = torch.zeros_like(x)
    for t in range(x.shape[0]):
        total = torch.zeros(x.shape[1])
        for expert, weight in zip(ids[t].tolist(), weights[t].tolist(), strict=True):
            gate, up = w13[expert, :width].float(), w13[expert, width:].float()
            hidden = torch.nn.functional.silu(gate @ x[t].float()) * (up @ x[t].float())
            total += weight * (w2[expert].float() @ hidden)
        out[t] = total.to(x.dtype)
    return out
