"""The definition of the index scores, one query row at a time in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from paths.engine.batch import LayerCache
from paths.kernels.index_topk.reference import index_logits, visible_keys


def mqa_logits(
    q: Tensor,
    weights: Tensor,
    keys: Tensor,
    scales: Tensor | None,
    starts: Tensor,
    ends: Tensor,
    *,
    width: int,
) -> Tensor:
    """Scores of keys that stand in one piece, all requests one behind the other (prefill).

    q `[T, nI, dI]`, weights float32 `[T, nI]`, keys `[N, dI]` in q's dtype with scales float32 `[N]` or none.
    Column j of row t is key starts[t] + j, for starts[t] + j < ends[t]; later columns hold anything. Returns
    float32 `[T, width]`.
    """
    logits = torch.full((q.shape[0], width), torch.nan)
    for t, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        if end > start:
            rows = keys[start:end].float()
            rows = rows if scales is None else rows * scales[start:end, None]
            logits[t, : end - start] = index_logits(q[t], weights[t], rows)
    return logits


def paged_mqa_logits(
    q: Tensor,
    weights: Tensor,
    cache: LayerCache,
    req_rows: Tensor,
    lengths: Tensor,
    block_table: Tensor,
    *,
    width: int,
    at_least: int = 0,
) -> Tensor:
    """Scores of the first lengths[t] keys of row t's request, read from the paged cache (decode).

    q `[T, nI, dI]` in the cache's number type, weights float32 `[T, nI]`, req_rows and lengths int32 `[T]`,
    block_table int32 `[rows, blocks]`. Any number of rows may belong to one request; they stand together.
    Rows of length ≤ at_least are left out. Returns float32 `[T, width]`; columns behind a row's length hold
    anything.
    """
    logits = torch.full((q.shape[0], width), torch.nan)
    for t, length in enumerate(lengths.tolist()):
        if length > max(at_least, 0):
            keys = visible_keys(cache, block_table[int(req_rows[t])], length)
            logits[t, :length] = index_logits(q[t], weights[t], keys)
    return logits
