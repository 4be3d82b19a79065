"""Index scores for any device: a gather of every row's keys, chunked by a memory budget."""

from __future__ import annotations

import torch
from torch import Tensor

from paths.engine.batch import NULL_BLOCK, PAGE_SIZE, LayerCache
from paths.kernels.layouts import E4M3, index_views

BUDGET_BYTES = 32 << 20


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
    """q `[T, nI, dI]`, keys `[N, dI]`, scales float32 `[N]` → float32 `[T, width]`."""
    tokens, _, dim = q.shape
    columns = torch.arange(width, device=q.device)
    logits = torch.empty(tokens, width, dtype=torch.float32, device=q.device)
    readable = keys.view(torch.uint8) if keys.dtype is E4M3 else keys
    for rows in _chunks(tokens, width * dim):
        valid = columns < (ends - starts)[rows, None]
        places = torch.where(valid, starts[rows, None].long() + columns, 0)
        gathered = readable[places].view(keys.dtype).float()
        factors = None if scales is None else scales[places]
        logits[rows] = _scores(q[rows], weights[rows], gathered, factors)
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
    """q `[T, nI, dI]` against the paged cache → float32 `[T, width]`."""
    assert cache.index is not None, "this layer shares its indexer"
    tokens, _, dim = q.shape
    columns = torch.arange(width, device=q.device)
    logits = torch.empty(tokens, width, dtype=torch.float32, device=q.device)
    for rows in _chunks(tokens, width * dim):
        live = torch.where(lengths[rows] > at_least, lengths[rows], 0)
        pages = block_table[req_rows[rows].long()][:, columns // PAGE_SIZE].long()
        # behind a row's last page the table may name any block
        pages = torch.where(columns < live[:, None], pages, NULL_BLOCK)
        offsets = (columns % PAGE_SIZE).expand_as(pages)
        if cache.index_dtype == "fp8":
            keys, scales = index_views(cache.index)
            gathered = keys.view(torch.uint8)[pages, offsets].view(E4M3).float()
            logits[rows] = _scores(q[rows], weights[rows], gathered, scales[pages, offsets])
        else:
            logits[rows] = _scores(q[rows], weights[rows], cache.index[pages, offsets].float(), None)
    return logits


def _chunks(tokens: int, floats_per_row: int) -> list[slice]:
    step = max(1, BUDGET_BYTES // max(1, 4 * floats_per_row))
    return [slice(start, start + step) for start in range(0, tokens, step)]


def _scores(q: Tensor, weights: Tensor, keys: Tensor, scales: Tensor | None) -> Tensor:
    """q `[n, nI, dI]` against its own keys `[n, L, dI]` → `[n, L]`."""
    heads = torch.relu(q.float() @ keys.transpose(1, 2))
    scores = torch.matmul(weights[:, None], heads).squeeze(1)
    return scores if scales is None else scores * scales
