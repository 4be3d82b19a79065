"""The definition of index_k_write: which bytes an index key leaves."""

from __future__ import annotations

from torch import Tensor

from paths.engine.batch import PAGE_SIZE, LayerCache
from paths.kernels import quant
from paths.kernels.layouts import index_views


def index_k_write(k: Tensor, slot_mapping: Tensor, cache: LayerCache, *, hadamard: bool) -> None:
    """k `[T, dI]` after LayerNorm and RoPE, slot_mapping `[T]`; a negative slot writes nothing.

    The rotation's float32 result is what is stored or quantized, without a rounding in between. fp8 takes one
    block over the whole vector.
    """
    assert cache.index is not None, "this layer shares its indexer"
    for t, slot in enumerate(slot_mapping.tolist()):
        if slot < 0:
            continue
        block, offset = divmod(slot, PAGE_SIZE)
        values = quant.hadamard(k[t]) if hadamard else k[t]
        if cache.index_dtype == "fp8":
            keys, scales = index_views(cache.index)
            keys[block, offset], scales[block, offset] = quant.quantize_block(values)
        else:
            cache.index[block, offset] = values.to(cache.index.dtype)
