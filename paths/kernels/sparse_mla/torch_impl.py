"""sparse_mla for any device, in chunks of rows by a memory budget."""

from __future__ import annotations

import torch
from torch import Tensor

from paths.engine.batch import PAGE_SIZE, ForwardBatch, LayerCache
from paths.kernels.layouts import DS_MLA_TILE, E4M3
from paths.kernels.quant import to_e4m3

BUDGET_BYTES = 32 << 20


def sparse_mla(
    q: Tensor, cache: LayerCache, batch: ForwardBatch, k: int, *, latent: int, scale: float
) -> tuple[Tensor, Tensor]:
    """q `[T, H, C + R]` → out `[T, H, C]` in q's dtype, lse float32 `[T, H]`; 0 and -inf for an empty row."""
    tokens, heads, width = q.shape
    columns = max(1, min(k, batch.max_length))  # rows fill from the left: longer rows do not exist
    out = q.new_zeros(tokens, heads, latent)
    lse = torch.full((tokens, heads), -torch.inf, device=q.device)
    step = max(1, BUDGET_BYTES // (4 * columns * width))
    for start in range(0, tokens, step):
        rows = slice(start, start + step)
        indices = batch.topk_indices[:tokens, :columns][rows].long()
        keys = _gather(cache, batch.block_table, batch.req_rows[:tokens][rows], indices, latent)
        out[rows], lse[rows] = _attend(q[rows], keys, indices >= 0, cache, scale, latent)
    return out, lse


def _gather(cache: LayerCache, block_table: Tensor, req_rows: Tensor, indices: Tensor, latent: int) -> Tensor:
    """Selected keys float32 `[n, columns, C + R]`, without the scale of an fp8 cache; zeros where unused."""
    safe = indices.clamp(min=0)
    slots = block_table[req_rows.long()[:, None], safe // PAGE_SIZE].long() * PAGE_SIZE + safe % PAGE_SIZE
    # a padding row's block table may name any block
    slots = torch.where(indices >= 0, slots, 0)
    flat = cache.kv.flatten(0, 1)
    if cache.kv_dtype == "fp8_ds_mla":
        keys = _unpack_ds_mla(flat[slots], latent)
    elif cache.kv_dtype == "fp8":
        keys = flat.view(torch.uint8)[slots].view(E4M3).float()
    else:
        keys = flat[slots].float()
    unused = indices < 0
    # zero the key itself: a probability of 0 times NaN would be NaN
    return keys.masked_fill_(unused[..., None], 0.0) if bool(unused.any()) else keys


def _unpack_ds_mla(rows: Tensor, latent: int) -> Tensor:
    tiles = rows[..., :latent].view(E4M3).unflatten(-1, (-1, DS_MLA_TILE)).float()
    scales_end = latent + 4 * (latent // DS_MLA_TILE)
    scales = rows[..., latent:scales_end].contiguous().view(torch.float32)
    rope = rows[..., scales_end:].contiguous().view(torch.bfloat16)
    values = (tiles * scales[..., None]).flatten(-2).to(torch.bfloat16)
    return torch.cat([values, rope], dim=-1).float()


def _attend(
    q: Tensor, keys: Tensor, used: Tensor, cache: LayerCache, scale: float, latent: int
) -> tuple[Tensor, Tensor]:
    quantized = cache.kv_dtype == "fp8"
    query = to_e4m3(q).float() if quantized else q.float()
    logits = query @ keys.transpose(1, 2) * (scale * cache.k_scale if quantized else scale)
    logits = logits.masked_fill(~used[:, None], -torch.inf)
    highest = logits.amax(-1, keepdim=True)
    # an empty row has no maximum: subtracting -inf from -inf would be NaN
    weights = (logits - highest.masked_fill(highest.isneginf(), 0.0)).exp()
    total = weights.sum(-1, keepdim=True)
    out = weights @ keys[..., :latent] / total.masked_fill(total == 0, 1.0)
    return (out * cache.k_scale if quantized else out).to(q.dtype), (highest + total.log()).squeeze(-1)
