"""What sparse_mla launches: argument checks, views of the cache, tiles and splits."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from paths.engine.batch import PAGE_SIZE, ForwardBatch, LayerCache
from paths.kernels.launching import Target, TileConfig
from paths.kernels.layouts import DS_MLA_TILE, E4M3, ds_mla_views
from paths.kernels.tensors import check_tensor

OP = "sparse_mla"
FORMATS = {"float32": 0, "bf16": 0, "fp8": 1, "fp8_ds_mla": 2}
ELEMENTS = {"float32": torch.float32, "bf16": torch.bfloat16, "fp8": E4M3, "fp8_ds_mla": torch.uint8}
MAX_HEADS = 128
COLUMNS_PER_SPLIT = 128  # fewer are not worth a merge
PROGRAMS = 132  # splits until about this many programs run: the tiles leave room for one per processor

# Blocks of 16, 32 or 64 heads: from 64 heads up wgmma and tcgen05, below mma.sync. With 64 keys a step the
# accumulator of 64 × 512 leaves too few registers on sm_90.
NVIDIA_TILE = (8, 3, 32)  # warps, stages, keys
FLOAT32_TILE = (16, 8, 1, 16)  # heads, warps, stages, keys: no matrix instruction is IEEE
HIP_TILE = (16, 4, 1, 16)  # 64 KiB of LDS hold no more


def views(cache: LayerCache, latent: int, rope: int) -> tuple[Tensor, Tensor, Tensor]:
    """Latent, scales and rope part of the rows; without scales of its own a row stands in for them."""
    if cache.kv_dtype == "fp8_ds_mla":
        return ds_mla_views(cache.kv, rope)
    return cache.kv[..., :latent], cache.kv, cache.kv[..., latent:]


def tiles_for(
    heads: int, compute: torch.dtype, latent: int, rope: int, k: int, target: Target
) -> tuple[TileConfig, int]:
    if compute is torch.float32:
        block_h, warps, stages, block_n = FLOAT32_TILE
    elif target.kind == "hip":
        block_h, warps, stages, block_n = HIP_TILE
    else:
        block_h = min(64, max(16, triton.next_power_of_2(heads)))
        warps, stages, block_n = NVIDIA_TILE
    tiles = {
        "BLOCK_H": block_h,
        "BLOCK_N": block_n,
        "BLOCK_C": max(16, triton.next_power_of_2(latent)),
        "BLOCK_R": max(16, triton.next_power_of_2(rope)),
        "SELECTED": triton.next_power_of_2(k),
    }
    return TileConfig(num_warps=warps, num_stages=stages, tiles=tiles), block_h


def splits_for(programs: int, columns: int) -> int:
    wanted = PROGRAMS // max(programs, 1)
    return max(1, min(wanted, triton.cdiv(columns, COLUMNS_PER_SPLIT)))


def check_arguments(q: Tensor, cache: LayerCache, batch: ForwardBatch, k: int, latent: int) -> None:
    check_tensor(OP, "q", q, dtype=(torch.float32, torch.bfloat16), shape=(None, None, None))
    tokens, heads, width = q.shape
    kind = cache.kv_dtype
    if kind not in FORMATS:
        raise ValueError(f"{OP}: kv_dtype of cache is {kind!r}, allowed are {', '.join(FORMATS)}")
    if not 1 <= heads <= MAX_HEADS:
        raise ValueError(f"{OP}: q has {heads} heads, allowed are 1 to {MAX_HEADS}")
    if not 0 < latent < width:
        raise ValueError(f"{OP}: latent is {latent}, allowed is 1 to {width - 1} for q of width {width}")
    if kind == "fp8_ds_mla" and latent % DS_MLA_TILE:
        raise ValueError(f"{OP}: latent is {latent}, allowed are multiples of {DS_MLA_TILE} for {kind}")
    packed = latent + 4 * (latent // DS_MLA_TILE) + 2 * (width - latent)
    row = packed if kind == "fp8_ds_mla" else width
    check_tensor(OP, "cache.kv", cache.kv, dtype=ELEMENTS[kind], shape=(None, PAGE_SIZE, row))
    check_tensor(OP, "cache.k_scale", cache.k_scale, dtype=torch.float32, shape=())
    check_tensor(OP, "batch.topk_indices", batch.topk_indices, dtype=torch.int32, shape=(None, None))
    if batch.topk_indices.shape[0] < tokens or not 1 <= k <= batch.topk_indices.shape[1]:
        raise ValueError(
            f"{OP}: batch.topk_indices has shape {tuple(batch.topk_indices.shape)}, "
            f"allowed is at least ({tokens}, {k}) with k of 1 or more"
        )
    check_tensor(OP, "batch.req_rows", batch.req_rows, dtype=torch.int32, shape=(None,))
    check_tensor(OP, "batch.block_table", batch.block_table, dtype=torch.int32, shape=(None, None))
