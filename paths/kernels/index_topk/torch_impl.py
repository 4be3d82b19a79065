"""index_topk for any device: rows of one request share a gather of its keys, chunked by a memory budget."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from paths.engine.batch import NULL_BLOCK, PAGE_SIZE, ForwardBatch, LayerCache
from paths.kernels.layouts import E4M3, index_views

TILE = 16  # rows of one request that are scored against one gather of its keys
BUDGET_BYTES = 32 << 20


def index_topk(q: Tensor, weights: Tensor, cache: LayerCache, batch: ForwardBatch, k: int) -> None:
    """q `[T, nI, dI]`, weights float32 `[T, nI]`; fills `batch.topk_indices[:T, :k]`."""
    tokens = q.shape[0]
    out, lengths = batch.topk_indices[:tokens, :k], batch.lengths[:tokens]
    columns = torch.arange(k, dtype=torch.int32, device=q.device)
    out.copy_(torch.where(columns < lengths[:, None], columns, -1))
    if batch.max_length <= k:
        return
    for tile_rows in _tiles(lengths > k, batch.req_rows[:tokens]):
        heads, dim = q.shape[1:]
        per_tile = 4 * batch.max_length * (dim + tile_rows.shape[1] * (heads + 4))
        for rows in tile_rows.split(max(1, BUDGET_BYTES // per_tile)):
            real = rows >= 0
            scores = _scores(q, weights, cache, batch, rows.clamp(min=0))
            out[rows[real]] = _select(scores, k)[real]


def _tiles(wanted: Tensor, req_rows: Tensor) -> Iterator[Tensor]:
    """Row numbers `[tiles, n]` of the wanted rows, -1 for unused places.

    All rows of a tile belong to one request. Rows that are alone in their request come as tiles of one, the
    others as tiles of TILE.
    """
    rows = wanted.nonzero().squeeze(1)
    if rows.numel() == 0:
        return
    request = req_rows[rows]
    starts = torch.ones_like(request, dtype=torch.bool)
    starts[1:] = request[1:] != request[:-1]
    run = starts.cumsum(0) - 1
    run_sizes = torch.bincount(run)
    alone = run_sizes[run] == 1
    if bool(alone.any()):
        yield rows[alone][:, None]
    if bool(alone.all()):
        return
    place = torch.arange(len(rows), device=rows.device) - starts.nonzero().squeeze(1)[run]
    tiles_per_run = torch.where(run_sizes == 1, 0, (run_sizes + TILE - 1) // TILE)
    first_tile = tiles_per_run.cumsum(0) - tiles_per_run
    tiled = rows.new_full((int(tiles_per_run.sum()), TILE), -1)
    many = ~alone
    tiled[(first_tile[run] + place // TILE)[many], (place % TILE)[many]] = rows[many]
    yield tiled


def _scores(q: Tensor, weights: Tensor, cache: LayerCache, batch: ForwardBatch, rows: Tensor) -> Tensor:
    """float32 `[tiles, n, L]`; -inf beyond a row's length and for NaN, zeros positive."""
    tiles, n = rows.shape
    lengths = batch.lengths[rows]
    keys, scales = _gather_keys(
        cache, batch.block_table[batch.req_rows[rows[:, 0]].long()], int(lengths.max())
    )
    columns = keys.shape[1]
    heads = torch.relu(q[rows].float().flatten(1, 2) @ keys.transpose(1, 2)).unflatten(1, (n, -1))
    scores = torch.matmul(weights[rows][:, :, None], heads).view(tiles, n, columns)
    if scales is not None:
        scores = scores * scales[:, None]
    visible = torch.arange(columns, device=q.device) < lengths[..., None]
    # adding zero turns -0 into +0
    return torch.where(visible & ~scores.isnan(), scores + 0.0, -torch.inf)


def _gather_keys(cache: LayerCache, block_rows: Tensor, length: int) -> tuple[Tensor, Tensor | None]:
    """Keys float32 `[tiles, L, dI]` of whole pages, and their scales `[tiles, L]` where there are any."""
    assert cache.index is not None, "this layer shares its indexer"
    pages = -(-length // PAGE_SIZE)
    blocks = block_rows[:, :pages].long()
    # stale entries behind a short request's last page may name any block
    blocks = torch.where((blocks >= 0) & (blocks < cache.index.shape[0]), blocks, NULL_BLOCK)
    if cache.index_dtype != "fp8":
        return cache.index[blocks].flatten(1, 2).float(), None
    keys, scales = index_views(cache.index)
    return keys.view(torch.uint8)[blocks].view(E4M3).flatten(1, 2).float(), scales[blocks].flatten(1, 2)


def _select(scores: Tensor, k: int) -> Tensor:
    """The k best columns, best first, int32 `[..., k]`.

    Score and column are packed in one integer, so that no two keys are equal and the order is fixed.
    """
    bits = scores.view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    column = torch.arange(scores.shape[-1], device=scores.device)
    return ((ordered << 32) + (0x7FFFFFFF - column)).topk(k, dim=-1).indices.int()
