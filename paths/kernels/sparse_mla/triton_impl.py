"""sparse_mla on Triton: checks, tiles and splits, and the launches.

Bytes of one token row: every selected key once per block of 64 heads (1152 B in bf16, 656 B in fp8_ds_mla;
the second block of 128 heads finds them in L2), the query and the output once. A row that is split over s
programs adds s × H × C float32 written and read once.
"""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from paths.engine.batch import PAGE_SIZE, ForwardBatch, LayerCache
from paths.kernels.compile_specs import META, CompileSpec, of_cases, traced
from paths.kernels.launching import Target, TileConfig, launch, target_of
from paths.kernels.layouts import DS_MLA_TILE, E4M3, ds_mla_views
from paths.kernels.sparse_mla.triton_kernels import (
    quantize_query_kernel,
    sparse_mla_kernel,
    sparse_mla_merge_kernel,
)
from paths.kernels.tensors import check_tensor

OP = "sparse_mla"
FORMATS = {"float32": 0, "bf16": 0, "fp8": 1, "fp8_ds_mla": 2}
ELEMENTS = {"float32": torch.float32, "bf16": torch.bfloat16, "fp8": E4M3, "fp8_ds_mla": torch.uint8}
MAX_HEADS = 128
COLUMNS_PER_SPLIT = 128  # fewer are not worth a merge
PROGRAMS = 132  # splits until about this many programs run: the tiles leave room for one per processor

# block of heads → (warps, stages, keys per step). From 64 heads up wgmma and tcgen05, below mma.sync.
NVIDIA_TILES = {16: (8, 2, 64), 32: (8, 2, 32), 64: (8, 2, 64)}
FLOAT32_TILE = (16, 8, 1, 16)  # heads, warps, stages, keys: no matrix instruction is IEEE
HIP_TILE = (16, 4, 1, 16)  # 64 KiB of LDS hold no more


def sparse_mla(
    q: Tensor, cache: LayerCache, batch: ForwardBatch, k: int, *, latent: int, scale: float
) -> tuple[Tensor, Tensor]:
    """q `[T, H, C + R]` → out `[T, H, C]` in q's dtype, lse float32 `[T, H]`; 0 and -inf for an empty row.

    Products are bf16 with float32 sums, or float32 where the query or the cache is. Raises ValueError.
    """
    tokens, heads, width = q.shape
    _check(q, cache, batch, k, latent)
    columns = max(1, min(k, batch.max_length))  # rows fill from the left: longer rows do not exist
    compute = torch.float32 if torch.float32 in (q.dtype, cache.kv.dtype) else torch.bfloat16
    config, block_h = _tiles(heads, compute, latent, width - latent, k, target_of(q.device))
    head_blocks = triton.cdiv(heads, block_h)
    splits = _splits(tokens * head_blocks, columns)

    out = torch.empty(tokens, heads, latent, dtype=q.dtype, device=q.device)
    lse = torch.empty(tokens, heads, dtype=torch.float32, device=q.device)
    parts, part_lse = out, lse
    if splits > 1:
        parts = torch.empty(splits, tokens, heads, latent, dtype=torch.float32, device=q.device)
        part_lse = torch.empty(splits, tokens, heads, dtype=torch.float32, device=q.device)
    query = _quantized(q, compute) if cache.kv_dtype == "fp8" else q
    stored, scales, rope_keys = _views(cache, latent, width - latent)
    launch(
        sparse_mla_kernel,
        (tokens, head_blocks, splits),
        query,
        stored,
        scales,
        rope_keys,
        cache.k_scale,
        batch.topk_indices,
        batch.req_rows,
        batch.block_table,
        parts,
        part_lse,
        query.stride(0),
        query.stride(1),
        batch.topk_indices.stride(0),
        batch.block_table.stride(0),
        tokens,
        heads,
        columns,
        splits,
        float(scale),
        config=config,
        C=latent,
        R=width - latent,
        LATENT_STRIDE=stored.stride(1),
        SCALES_STRIDE=scales.stride(1),
        ROPE_STRIDE=rope_keys.stride(1),
        PAGE=PAGE_SIZE,
        FORMAT=FORMATS[cache.kv_dtype],
        COMPUTE=tl.float32 if compute is torch.float32 else tl.bfloat16,
    )
    if splits > 1:
        _merge(parts, part_lse, out, lse)
    return out, lse


def _merge(parts: Tensor, part_lse: Tensor, out: Tensor, lse: Tensor) -> None:
    splits, tokens, heads, latent = parts.shape
    tiles = {"BLOCK_S": 256, "BLOCK_C": triton.next_power_of_2(latent)}
    launch(
        sparse_mla_merge_kernel,
        (tokens * heads,),
        parts,
        part_lse,
        out,
        lse,
        tokens * heads,
        splits,
        config=TileConfig(num_warps=4, num_stages=1, tiles=tiles),
        C=latent,
    )


def _quantized(q: Tensor, compute: torch.dtype) -> Tensor:
    """q through e4m3 and back, in the dtype of the products."""
    tokens, heads, width = q.shape
    out = torch.empty(tokens, heads, width, dtype=compute, device=q.device)
    launch(
        quantize_query_kernel,
        (tokens * heads,),
        q,
        out,
        q.stride(0),
        q.stride(1),
        heads,
        config=TileConfig(num_warps=4, num_stages=1, tiles={"BLOCK": triton.next_power_of_2(width)}),
        D=width,
    )
    return out


def _views(cache: LayerCache, latent: int, rope: int) -> tuple[Tensor, Tensor, Tensor]:
    """Latent, scales and rope part of the rows; without scales of its own a row stands in for them."""
    if cache.kv_dtype == "fp8_ds_mla":
        return ds_mla_views(cache.kv, rope)
    return cache.kv[..., :latent], cache.kv, cache.kv[..., latent:]


def _tiles(
    heads: int, compute: torch.dtype, latent: int, rope: int, k: int, target: Target
) -> tuple[TileConfig, int]:
    if compute is torch.float32:
        block_h, warps, stages, block_n = FLOAT32_TILE
    elif target.kind == "hip":
        block_h, warps, stages, block_n = HIP_TILE
    else:
        block_h = min(64, max(16, triton.next_power_of_2(heads)))
        warps, stages, block_n = NVIDIA_TILES[block_h]
    tiles = {
        "BLOCK_H": block_h,
        "BLOCK_N": block_n,
        "BLOCK_C": max(16, triton.next_power_of_2(latent)),
        "BLOCK_R": max(16, triton.next_power_of_2(rope)),
        "SELECTED": triton.next_power_of_2(k),
    }
    return TileConfig(num_warps=warps, num_stages=stages, tiles=tiles), block_h


def _splits(programs: int, columns: int) -> int:
    wanted = PROGRAMS // max(programs, 1)
    return max(1, min(wanted, triton.cdiv(columns, COLUMNS_PER_SPLIT)))


def _check(q: Tensor, cache: LayerCache, batch: ForwardBatch, k: int, latent: int) -> None:
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
    check_tensor(OP, "q", q, dtype=(torch.float32, torch.bfloat16), shape=(tokens, heads, width))
    packed = latent + 4 * (latent // DS_MLA_TILE) + 2 * (width - latent)
    row = packed if kind == "fp8_ds_mla" else width
    check_tensor(OP, "cache.kv", cache.kv, dtype=ELEMENTS[kind], shape=(None, PAGE_SIZE, row))
    if cache.kv.stride(0) != PAGE_SIZE * cache.kv.stride(1):
        raise ValueError(f"{OP}: cache.kv has strides {cache.kv.stride()}, allowed is pages without gaps")
    check_tensor(OP, "cache.k_scale", cache.k_scale, dtype=torch.float32, shape=())
    check_tensor(OP, "batch.topk_indices", batch.topk_indices, dtype=torch.int32, shape=(None, None))
    if batch.topk_indices.shape[0] < tokens or not 1 <= k <= batch.topk_indices.shape[1]:
        raise ValueError(
            f"{OP}: batch.topk_indices has shape {tuple(batch.topk_indices.shape)}, "
            f"allowed is at least ({tokens}, {k}) with k of 1 or more"
        )
    check_tensor(OP, "batch.req_rows", batch.req_rows, dtype=torch.int32, shape=(None,))
    check_tensor(OP, "batch.block_table", batch.block_table, dtype=torch.int32, shape=(None, None))


def compile_specs() -> list[CompileSpec]:
    """V3.2 (128 heads, or 16 on each of 8 ranks) and GLM-5.2 (64), split or not; all that the checks run."""
    from paths.kernels.sparse_mla.cases import KV_DTYPES, check_cases, production_call

    must = {sparse_mla_kernel.fn.__name__}
    specs = [
        spec
        for kv_dtype in KV_DTYPES[1:]
        for label, heads in (("v32", 128), ("glm52", 64), ("v32 on 8 ranks", 16))
        for tokens in (1, 256)
        for spec in traced(
            OP,
            f"{label}, {kv_dtype}, {tokens} rows",
            partial(sparse_mla, **production_call(kv_dtype, heads=heads, tokens=tokens, device=META)),
            matrix=must,
            notes="" if heads >= 64 else "mma.sync: a tile has 16 rows of heads",
        )
    ]
    return specs + of_cases(OP, sparse_mla, check_cases())
