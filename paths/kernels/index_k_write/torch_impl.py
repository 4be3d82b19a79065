"""index_k_write for any device."""

from __future__ import annotations

import torch
from torch import Tensor

from paths.engine.batch import PAGE_SIZE, LayerCache
from paths.kernels import quant
from paths.kernels.layouts import index_views


def index_k_write(k: Tensor, slot_mapping: Tensor, cache: LayerCache, *, hadamard: bool) -> None:
    """k `[T, dI]`, slot_mapping `[T]`; a negative slot writes nothing."""
    assert cache.index is not None, "this layer shares its indexer"
    live = slot_mapping >= 0
    if not bool(live.all()):
        k, slot_mapping = k[live], slot_mapping[live]
    values = quant.hadamard(k) if hadamard else k
    block, offset = slot_mapping // PAGE_SIZE, slot_mapping % PAGE_SIZE
    if cache.index_dtype != "fp8":
        cache.index[block, offset] = values.to(cache.index.dtype)
        return
    keys, scales = index_views(cache.index)
    quantized, scale = quant.quantize_block(values)
    keys.view(torch.uint8)[block, offset] = quantized.view(torch.uint8)
    scales[block, offset] = scale
