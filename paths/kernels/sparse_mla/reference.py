"""The definition of sparse_mla, one token at a time in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from paths.engine.batch import PAGE_SIZE, ForwardBatch, LayerCache
from paths.kernels.layouts import DS_MLA_TILE, ds_mla_views
from paths.kernels.quant import to_e4m3


def sparse_mla(
    q: Tensor, cache: LayerCache, batch: ForwardBatch, k: int, *, latent: int, scale: float
) -> tuple[Tensor, Tensor]:
    """q `[T, H, C + R]` against the keys named by `batch.topk_indices[:T, :k]`; C is `latent`.

    Returns out `[T, H, C]` in q's dtype and lse float32 `[T, H]` (natural logarithm). The value is the latent
    part of the key. A row that selects nothing gives 0 and -inf. An fp8 cache quantizes the query too, with
    scale 1.
    """
    tokens, heads, _ = q.shape
    out = torch.zeros(tokens, heads, latent, dtype=q.dtype)
    lse = torch.full((tokens, heads), -torch.inf)
    for t in range(tokens):
        chosen = [i for i in batch.topk_indices[t, :k].tolist() if i >= 0]
        if not chosen:
            continue
        block_row = batch.block_table[int(batch.req_rows[t])]
        keys = torch.stack([_key(cache, block_row, i, latent) for i in chosen])
        query = to_e4m3(q[t]).float() if cache.kv_dtype == "fp8" else q[t].float()
        logits = query @ keys.T * scale
        lse[t] = logits.logsumexp(-1)
        out[t] = (logits.softmax(-1) @ keys[:, :latent]).to(q.dtype)
    return out, lse


def _key(cache: LayerCache, block_row: Tensor, position: int, latent: int) -> Tensor:
    """One key as float32 `[C + R]`; fp8_ds_mla passes through bfloat16."""
    block, offset = int(block_row[position // PAGE_SIZE]), position % PAGE_SIZE
    row = cache.kv[block, offset]
    if cache.kv_dtype != "fp8_ds_mla":
        return row.float() * cache.k_scale if cache.kv_dtype == "fp8" else row.float()
    rope_dim = (row.shape[0] - latent - 4 * (latent // DS_MLA_TILE)) // 2
    tiles, scales, rope = (part[block, offset] for part in ds_mla_views(cache.kv, rope_dim))
    values = torch.cat(
        [tiles[j * DS_MLA_TILE : (j + 1) * DS_MLA_TILE].float() * scales[j] for j in range(scales.shape[0])]
    )
    return torch.cat([values.to(torch.bfloat16), rope]).float()
