"""The definition of mla_cache_write: which bytes a token leaves in each layout."""

from __future__ import annotations

from torch import Tensor

from paths.engine.batch import PAGE_SIZE, LayerCache
from paths.kernels.layouts import DS_MLA_TILE, E4M3, ds_mla_views
from paths.kernels.quant import quantize_block, to_e4m3


def mla_cache_write(c: Tensor, k_pe: Tensor, slot_mapping: Tensor, cache: LayerCache) -> None:
    """c `[T, C]` normed latent, k_pe `[T, R]` rotated key part, slot_mapping `[T]`; slot < 0 writes nothing.

    fp8: one scale for the layer, value = stored × k_scale. fp8_ds_mla: the latent in tiles of 128 with a
    power-of-two scale each, the rope part as bfloat16.
    """
    latent = c.shape[1]
    for t, slot in enumerate(slot_mapping.tolist()):
        if slot < 0:
            continue
        block, offset = divmod(slot, PAGE_SIZE)
        if cache.kv_dtype == "fp8_ds_mla":
            tiles, scales, rope = ds_mla_views(cache.kv, k_pe.shape[1])
            for j in range(latent // DS_MLA_TILE):
                columns = slice(j * DS_MLA_TILE, (j + 1) * DS_MLA_TILE)
                tiles[block, offset, columns], scales[block, offset, j] = quantize_block(c[t, columns])
            rope[block, offset] = k_pe[t].to(rope.dtype)
            continue
        for columns, values in ((slice(0, latent), c[t]), (slice(latent, None), k_pe[t])):
            if cache.kv_dtype == "fp8":
                cache.kv[block, offset, columns] = to_e4m3(values.float() / cache.k_scale).to(E4M3)
            else:
                cache.kv[block, offset, columns] = values.to(cache.kv.dtype)
