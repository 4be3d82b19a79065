"""Index checks of fused_norm_rope for debug.checks=true."""

from __future__ import annotations

from torch import Tensor

from paths.dsa_mrv2.kernels.arguments import LatentNorms, Rotary
from paths.engine.batch import ForwardBatch, LayerCache
from paths.kernels.guards import refuse_bad_slots, refuse_outside


def check_indices(
    projected: Tensor,
    norms: LatentNorms,
    rotary: Rotary,
    batch: ForwardBatch,
    cache: LayerCache,
    *,
    hadamard: bool,
) -> None:
    """Raises ValueError for a slot behind a cache's last page, and for a position behind the RoPE tables."""
    op = "fused_norm_rope"
    refuse_bad_slots(op, batch.slot_mapping, cache.kv.shape[0])
    if cache.index is not None and norms.index_weight is not None:
        refuse_bad_slots(op, batch.slot_mapping, cache.index.shape[0])
    refuse_outside(op, "positions", batch.positions, low=0, high=rotary.cos.shape[0])
