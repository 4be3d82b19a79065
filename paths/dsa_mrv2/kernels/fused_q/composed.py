"""fused_q as a composition of the shared ops."""

from __future__ import annotations

import torch
from torch import Tensor

from paths.dsa_mrv2.kernels.arguments import Rotary
from paths.kernels.registry import Kernels


def fused_q(
    kernels: Kernels,
    projected: Tensor,
    w_uk: Tensor,
    rotary: Rotary,
    positions: Tensor,
    index_weights: Tensor | None,
    *,
    index_dim: int,
    index_dtype: str,
    hadamard: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """projected `[T, H × (N + R) (+ nI × dI)]`, w_uk `[H, N, C]`, index_weights `[T, nI]` or None.

    Returns the absorbed attention query `[T, H, C + R]`, the indexer query `[T, nI, dI]` in the index dtype
    and its head weights float32 `[T, nI]`; the last two are empty without index_weights.
    """
    heads, nope, latent = w_uk.shape
    rope = 2 * rotary.cos.shape[1]
    width = heads * (nope + rope)
    q = projected[:, :width].unflatten(1, (heads, nope + rope))
    packed = projected.new_empty(projected.shape[0], heads, latent + rope)
    packed[..., :latent] = torch.bmm(q[..., :nope].transpose(0, 1), w_uk).transpose(0, 1)
    packed[..., latent:] = kernels.rope(
        q[..., nope:], rotary.cos, rotary.sin, positions, interleaved=rotary.interleaved
    )
    if index_weights is None:
        empty = projected.new_empty(0)
        return packed, empty, empty
    index_heads = index_weights.shape[1]
    index_q = projected[:, width : width + index_heads * index_dim].unflatten(1, (index_heads, index_dim))
    turned = kernels.rope(
        index_q[..., :rope], rotary.cos, rotary.sin, positions, interleaved=rotary.index_interleaved
    )
    index_q = torch.cat([turned, index_q[..., rope:]], dim=-1)
    return packed, *kernels.index_q_prepare(
        index_q, index_weights, index_dtype=index_dtype, hadamard=hadamard
    )
