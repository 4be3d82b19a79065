"""moe_experts for any device: tokens sorted by expert, then one grouped product per projection."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def moe_experts(x: Tensor, ids: Tensor, weights: Tensor, w13: Tensor, w2: Tensor) -> Tensor:
    """x `[T, D]`, ids int32 and weights float32 `[T, K]`, w13 `[E, 2I, D]`, w2 `[E, D, I]` → `[T, D]`."""
    tokens, chosen = ids.shape
    if tokens == 0:
        return torch.zeros_like(x)
    sorted_ids, order = ids.flatten().sort(stable=True)
    experts = torch.arange(w13.shape[0], dtype=ids.dtype, device=ids.device)
    # bincount would make the host wait for the largest id, and could not be captured on a GPU
    ends = torch.searchsorted(sorted_ids, experts, right=True, out_int32=True)
    hidden = F.grouped_mm(x[order // chosen], w13.transpose(1, 2), offs=ends)
    gate, up = hidden.float().chunk(2, dim=-1)
    partial = F.grouped_mm((F.silu(gate) * up).to(x.dtype), w2.transpose(1, 2), offs=ends)
    by_token = torch.empty_like(partial)
    by_token[order] = partial
    return (by_token.view(tokens, chosen, -1) * weights[..., None]).sum(1).to(x.dtype)
