"""moe_block and gated_mlp as compositions of the shared ops."""

from __future__ import annotations

import torch
from torch import Tensor

from paths.dsa_mrv2.kernels.arguments import MoeBlock
from paths.kernels.registry import Kernels


def moe_block(kernels: Kernels, x: Tensor, block: MoeBlock) -> Tensor:
    """x `[T, Dm]` → routed experts weighted by the router, plus the shared ones with weight 1."""
    weights, ids = kernels.moe_route(
        x,
        block.gate,
        block.bias,
        n_group=block.n_group,
        topk_group=block.topk_group,
        top_k=block.top_k,
        norm=block.norm,
        scaling=block.scaling,
    )
    shared = torch.arange(block.gate.shape[0], block.w13.shape[0], dtype=torch.int32, device=x.device)
    ids = torch.cat([ids, shared.expand(x.shape[0], -1)], dim=1)
    weights = torch.cat([weights, weights.new_ones(x.shape[0], len(shared))], dim=1)
    return kernels.moe_experts(x, ids, weights, block.w13, block.w2)


def gated_mlp(kernels: Kernels, x: Tensor, w13: Tensor, w2: Tensor) -> Tensor:
    """x `[T, Dm]`, w13 `[2I, Dm]` gate rows first, w2 `[Dm, I]` → `[T, Dm]`: one expert for all rows."""
    ids = torch.zeros(x.shape[0], 1, dtype=torch.int32, device=x.device)
    return kernels.moe_experts(x, ids, torch.ones_like(ids, dtype=torch.float32), w13[None], w2[None])
