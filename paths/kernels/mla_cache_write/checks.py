"""Index checks of mla_cache_write for debug.checks=true."""

from __future__ import annotations

from torch import Tensor

from paths.engine.batch import LayerCache
from paths.kernels.guards import refuse_bad_slots


def check_indices(c: Tensor, k_pe: Tensor, slot_mapping: Tensor, cache: LayerCache) -> None:
    """Raises ValueError for a slot behind the cache's last page."""
    refuse_bad_slots("mla_cache_write", slot_mapping, cache.kv.shape[0])
