"""Index checks of sparse_mla for debug.checks=true."""

from __future__ import annotations

from torch import Tensor

from paths.engine.batch import PAGE_SIZE, ForwardBatch, LayerCache
from paths.kernels.guards import refuse_outside


def check_indices(
    q: Tensor, cache: LayerCache, batch: ForwardBatch, k: int, *, latent: int, scale: float
) -> None:
    """Raises ValueError for a selected position behind the block table, or a block behind the cache."""
    selected = batch.topk_indices[: q.shape[0], :k]
    rows, width = batch.block_table.shape
    refuse_outside("sparse_mla", "topk_indices", selected.clamp(min=-1), low=-1, high=width * PAGE_SIZE)
    live = (selected >= 0).any(dim=1)
    req_rows = batch.req_rows[: q.shape[0]]
    refuse_outside("sparse_mla", "req_rows", req_rows[live], low=0, high=rows)
    positions = selected[live].long()
    blocks = batch.block_table[req_rows[live].long()].gather(1, positions.clamp(min=0) // PAGE_SIZE)
    used = blocks.where(positions >= 0, blocks.new_zeros(()))
    refuse_outside("sparse_mla", "block_table", used, low=0, high=cache.kv.shape[0])
