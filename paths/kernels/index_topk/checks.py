"""Index checks of index_topk for debug.checks=true."""

from __future__ import annotations

from torch import Tensor

from paths.engine.batch import ForwardBatch, LayerCache
from paths.kernels.guards import refuse_bad_pages


def check_indices(q: Tensor, weights: Tensor, cache: LayerCache, batch: ForwardBatch, k: int) -> None:
    """Raises ValueError for a row or page that does not exist."""
    if cache.index is not None:
        refuse_bad_pages("index_topk", batch, cache.index.shape[0])
