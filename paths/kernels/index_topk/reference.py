"""The definition of index_topk: score every visible key, then sort by (score descending, index ascending)."""

from __future__ import annotations

import torch
from torch import Tensor

from paths.engine.batch import PAGE_SIZE, ForwardBatch, LayerCache
from paths.kernels.layouts import index_views


def index_topk(q: Tensor, weights: Tensor, cache: LayerCache, batch: ForwardBatch, k: int) -> None:
    """q `[T, nI, dI]` and weights float32 `[T, nI]` from index_q_prepare; fills `batch.topk_indices[:T, :k]`.

    A row with length ≤ k gets 0..length-1, then -1. Otherwise the k largest scores win; of equal scores the
    lower index; NaN counts as -inf, and -0 equals 0. Nothing beyond a row's length is read.
    """
    for t in range(q.shape[0]):
        length = max(int(batch.lengths[t]), 0)
        row = torch.full((k,), -1, dtype=torch.int32)
        if length <= k:
            row[:length] = torch.arange(length)
        else:
            keys = visible_keys(cache, batch.block_table[int(batch.req_rows[t])], length)
            row[:] = select(index_logits(q[t], weights[t], keys), k)
        batch.topk_indices[t, :k] = row


def index_logits(q: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """sum over heads of W × ReLU(q · key): q `[nI, dI]`, weights `[nI]`, keys float32 `[L, dI]` → `[L]`.

    The ReLU acts on the raw product of each head, before its signed weight.
    """
    return (weights[:, None] * torch.relu(q.float() @ keys.T)).sum(0)


def select(scores: Tensor, k: int) -> Tensor:
    """The k best of `[L]` scores, best first, under the tie rule."""
    clean = [(-float("inf") if score != score else score) for score in scores.tolist()]
    order = sorted(range(len(clean)), key=lambda i: (-clean[i], i))
    return torch.tensor(order[:k], dtype=torch.int32)


def visible_keys(cache: LayerCache, block_row: Tensor, length: int) -> Tensor:
    """The first `length` keys of one request, dequantized: float32 `[length, dI]`."""
    assert cache.index is not None, "this layer shares its indexer"
    rows = []
    for position in range(length):
        block, offset = int(block_row[position // PAGE_SIZE]), position % PAGE_SIZE
        if cache.index_dtype == "fp8":
            keys, scales = index_views(cache.index)
            rows.append(keys[block, offset].float() * scales[block, offset])
        else:
            rows.append(cache.index[block, offset].float())
    return torch.stack(rows)
