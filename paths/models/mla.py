"""The two forms of multi-head latent attention. They are equal in real arithmetic.

T tokens, H heads, N nope, R rope, V value dims, C latent width.
"""

from __future__ import annotations

import torch
from torch import Tensor


def absorb_query(q_nope: Tensor, w_uk: Tensor) -> Tensor:
    """q_nope `[T, H, N]` through w_uk `[H, N, C]` → the query against the latent, `[T, H, C]`."""
    return torch.bmm(q_nope.transpose(0, 1), w_uk).transpose(0, 1)


def expand_value(out: Tensor, w_uv: Tensor) -> Tensor:
    """Attention over the latent `[T, H, C]` through w_uv `[H, V, C]` → `[T, H, V]`."""
    return torch.bmm(out.transpose(0, 1), w_uv.transpose(1, 2)).transpose(0, 1)


def dense_mla(
    q_nope: Tensor, q_pe: Tensor, c: Tensor, k_pe: Tensor, *, w_uk: Tensor, w_uv: Tensor, scale: float
) -> Tensor:
    """Non-absorbed causal attention of one whole sequence.

    q_nope `[T, H, N]`, q_pe `[T, H, R]`, c `[T, C]`, k_pe `[T, R]` → `[T, H, V]`. Keys and values are
    expanded per head; every row sees itself and all rows before it.
    """
    tokens, heads, _ = q_nope.shape
    k_nope = torch.einsum("sc,hnc->hsn", c, w_uk)
    keys = torch.cat([k_nope, k_pe.expand(heads, -1, -1)], dim=-1)
    query = torch.cat([q_nope, q_pe], dim=-1).transpose(0, 1)
    logits = (query.float() @ keys.float().transpose(1, 2)) * scale
    future = torch.ones(tokens, tokens, dtype=torch.bool, device=c.device).triu(1)
    weights = logits.masked_fill(future, -torch.inf).softmax(-1)
    values = torch.einsum("sc,hvc->hsv", c, w_uv)
    return (weights @ values.float()).to(c.dtype).transpose(0, 1)
