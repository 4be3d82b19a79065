"""Batches and filled caches for the check cases of the attention and selection ops."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paths.engine.batch import PAGE_SIZE, ForwardBatch, LayerCache
from paths.kernels.cases import randn, rows_far_apart
from paths.kernels.index_k_write.torch_impl import index_k_write
from paths.kernels.mla_cache_write.torch_impl import mla_cache_write

Spans = Sequence[tuple[int, int]]
FOREIGN_BLOCK = 2**30  # stands behind a request's last page: to read there is a fault


def draw_batch(
    generator: torch.Generator, spans: Spans, *, k: int, padding: int, device: torch.device
) -> tuple[ForwardBatch, int]:
    """Requests of positions start..end, `padding` rows behind them, and the number of blocks of their caches.

    Blocks are dealt out in random order and block 0 to nobody.
    """
    pages = [-(-end // PAGE_SIZE) for _, end in spans]
    order = torch.randperm(sum(pages), generator=generator) + 1
    table = torch.full((max(len(spans), 1), max([*pages, 1]) + 1), FOREIGN_BLOCK, dtype=torch.int32)
    taken = 0
    for row, count in enumerate(pages):
        table[row, :count] = order[taken : taken + count]
        taken += count
    positions = torch.cat([torch.arange(a, b) for a, b in spans] or [torch.zeros(0, dtype=torch.int64)])
    rows = torch.cat([torch.full((b - a,), r) for r, (a, b) in enumerate(spans)] or [positions]).int()
    slots = table[rows.long(), positions // PAGE_SIZE].long() * PAGE_SIZE + positions % PAGE_SIZE
    lengths = (positions + 1).int()

    def padded(tensor: Tensor, fill: int) -> Tensor:
        return torch.cat([tensor, tensor.new_full((padding,), fill)]).to(device)

    batch = ForwardBatch(
        input_ids=padded(positions, 0),
        positions=padded(positions, 0),
        slot_mapping=padded(slots, -1),
        req_rows=padded(rows, 0),
        lengths=padded(lengths, 0),
        block_table=table.to(device),
        topk_indices=torch.full((len(positions) + padding, k), -7, dtype=torch.int32, device=device),
        max_length=int(lengths.max()) if len(lengths) else 0,
    )
    return batch, sum(pages) + 1


def draw_selection(generator: torch.Generator, batch: ForwardBatch, *, k: int) -> None:
    """Up to k positions a row, out of order, with −1 between and behind them; some rows select nothing."""
    lengths = batch.lengths.tolist()
    selection = torch.full(batch.topk_indices.shape, -1, dtype=torch.int32)
    for t, length in enumerate(lengths):
        if length <= 0 or t % 17 == 5:
            continue
        chosen = torch.randperm(length, generator=generator)[: max(1, k - t % 3)].int()
        chosen[torch.rand(len(chosen), generator=generator) < 0.1 * (t % 2)] = -1
        selection[t, : len(chosen)] = chosen
    batch.topk_indices.copy_(selection)


def fill_kv(
    generator: torch.Generator, cache: LayerCache, batch: ForwardBatch, spans: Spans, latent: int
) -> None:
    """Random latents and rope keys for every position that a request has."""
    packed = cache.kv_dtype == "fp8_ds_mla"
    rope = (cache.kv.shape[-1] - latent - latent // 32) // 2 if packed else cache.kv.shape[-1] - latent
    for row, (_, end) in enumerate(spans):
        c, k_pe = (randn(generator, end, width, device=cache.kv.device) for width in (latent, rope))
        mla_cache_write(c, k_pe, slots_of(batch, row, end), cache)


def fill_index(
    generator: torch.Generator, cache: LayerCache, batch: ForwardBatch, spans: Spans, dim: int
) -> None:
    """Random index keys for every position that a request has."""
    assert cache.index is not None, "made with an index cache"
    for row, (_, end) in enumerate(spans):
        keys = randn(generator, end, dim, device=cache.index.device)
        index_k_write(keys, slots_of(batch, row, end), cache, hadamard=False)


def slots_of(batch: ForwardBatch, row: int, length: int) -> Tensor:
    """Slots int64 of positions 0..length of one request."""
    positions = torch.arange(length, device=batch.block_table.device)
    return batch.block_table[row, positions // PAGE_SIZE].long() * PAGE_SIZE + positions % PAGE_SIZE


def spread(tensor: Tensor) -> Tensor:
    """The same values with first dimension 2^30 elements apart: offsets in 32 bits wrap around."""
    flat = tensor.flatten(1)
    far = rows_far_apart(flat.shape[0], flat.shape[1], flat.dtype, flat.device).copy_(flat)
    return far.unflatten(1, tensor.shape[1:])
