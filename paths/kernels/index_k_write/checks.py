"""Index checks of index_k_write for debug.checks=true."""

from __future__ import annotations

from torch import Tensor

from paths.engine.batch import LayerCache
from paths.kernels.guards import refuse_bad_slots


def check_indices(k: Tensor, slot_mapping: Tensor, cache: LayerCache, *, hadamard: bool) -> None:
    """Raises ValueError for a slot behind the cache's last page."""
    if cache.index is not None:
        refuse_bad_slots("index_k_write", slot_mapping, cache.index.shape[0])
