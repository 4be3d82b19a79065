"""mla_cache_write for any device."""

from __future__ import annotations

import torch
from torch import Tensor

from paths.engine.batch import PAGE_SIZE, LayerCache
from paths.kernels.layouts import DS_MLA_TILE
from paths.kernels.quant import quantize_block, to_e4m3


def mla_cache_write(c: Tensor, k_pe: Tensor, slot_mapping: Tensor, cache: LayerCache) -> None:
    """c `[T, C]`, k_pe `[T, R]`, slot_mapping `[T]`; a negative slot writes nothing."""
    live = slot_mapping >= 0
    if not bool(live.all()):
        c, k_pe, slot_mapping = c[live], k_pe[live], slot_mapping[live]
    if cache.kv_dtype == "fp8_ds_mla":
        rows = _pack_ds_mla(c, k_pe)
    else:
        rows = torch.cat([c, k_pe], dim=-1)
        rows = to_e4m3(rows.float() / cache.k_scale) if cache.kv_dtype == "fp8" else rows.to(cache.kv.dtype)
    kv = cache.kv
    if cache.kv_dtype == "fp8":  # bytes, for not every device indexes e4m3
        kv, rows = kv.view(torch.uint8), rows.view(torch.uint8)
    # not by flat slot: blocks of a cache may stand apart, and to flatten those makes a copy
    kv[slot_mapping // PAGE_SIZE, slot_mapping % PAGE_SIZE] = rows


def _pack_ds_mla(c: Tensor, k_pe: Tensor) -> Tensor:
    """Bytes `[T, C + 4 × C / 128 + 2 × R]`."""
    tiles, scales = quantize_block(c.unflatten(-1, (-1, DS_MLA_TILE)))
    parts = (tiles.flatten(-2), scales, k_pe.to(torch.bfloat16).contiguous())
    return torch.cat([part.view(torch.uint8) for part in parts], dim=-1)
