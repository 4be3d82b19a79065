"""sparse_mla on Triton: attention over one split of the selection, and the merge of the splits.

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
from paths.kernels.casting import cast_to, dot, e4m3_to_f32, to_e4m3
from paths.kernels.compile_specs import META, CompileSpec, of_cases, traced
from paths.kernels.launching import TileConfig, launch, target_of
from paths.kernels.sparse_mla.tiles import FORMATS, OP, check_arguments, splits_for, tiles_for, views

PLAIN: tl.constexpr = tl.constexpr(0)  # one number type over the whole row
FP8: tl.constexpr = tl.constexpr(1)  # e4m3 with one scale per layer
DS_MLA: tl.constexpr = tl.constexpr(2)  # e4m3 latent, a float32 scale per 128 values, bf16 rope


@triton.jit
def sparse_mla_kernel(
    q_ptr,  # [T, H, C + R]
    latent_ptr,  # part of the cache's rows, like the next two
    scales_ptr,  # DS_MLA only
    rope_ptr,
    k_scale_ptr,  # [] float32
    indices_ptr,  # [T, columns] int32
    req_rows_ptr,  # [T] int32
    table_ptr,  # [rows, blocks] int32
    out_ptr,  # [splits, T, H, C]
    lse_ptr,  # [splits, T, H] float32
    q_stride_t,
    q_stride_h,
    indices_stride,
    table_stride,
    tokens,
    heads,
    columns,
    splits,
    scale,
    C: tl.constexpr,
    R: tl.constexpr,
    LATENT_BLOCK: tl.constexpr,  # from block to block of the cache, and from token to token
    LATENT_STRIDE: tl.constexpr,
    SCALES_BLOCK: tl.constexpr,
    SCALES_STRIDE: tl.constexpr,
    ROPE_BLOCK: tl.constexpr,
    ROPE_STRIDE: tl.constexpr,
    PAGE: tl.constexpr,
    FORMAT: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_R: tl.constexpr,
    SELECTED: tl.constexpr,
):
    """One token, BLOCK_H heads, one split of its columns."""
    t = tl.program_id(0).to(tl.int64)
    split = tl.program_id(2)
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    c = tl.arange(0, BLOCK_C)
    r = tl.arange(0, BLOCK_R)
    q_rows = q_ptr + t * q_stride_t + h[:, None] * q_stride_h
    live = h[:, None] < heads
    q_c = tl.load(q_rows + c[None, :], mask=live & (c < C)[None, :], other=0.0)
    q_r = tl.load(q_rows + C + r[None, :], mask=live & (r < R)[None, :], other=0.0)
    q_c = _narrow(q_c, COMPUTE)
    q_r = _narrow(q_r, COMPUTE)

    factor = scale * 1.4426950408889634  # exp2 instead of exp
    k_scale = 1.0
    if FORMAT == FP8:
        k_scale = tl.load(k_scale_ptr)
        factor = factor * k_scale
    row_indices = indices_ptr + t * indices_stride
    table = table_ptr + tl.load(req_rows_ptr + t).to(tl.int64) * table_stride

    per_split = tl.cdiv(tl.cdiv(columns, splits), BLOCK_N) * BLOCK_N
    first = split * per_split
    # one look at the whole row: everything behind its last index is skipped
    all_columns = tl.arange(0, SELECTED)
    everything = tl.load(row_indices + all_columns, mask=all_columns < columns, other=-1)
    used = tl.max(tl.where(everything >= 0, all_columns + 1, 0), axis=0)
    last = tl.minimum(first + per_split, used)

    highest = tl.full((BLOCK_H,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_H,), tl.float32)
    acc = tl.zeros((BLOCK_H, BLOCK_C), tl.float32)
    for start in tl.range(first, last, BLOCK_N, disable_licm=True):
        column = start + tl.arange(0, BLOCK_N)
        index = tl.load(row_indices + column, mask=column < last, other=-1)
        valid = index >= 0
        block = tl.load(table + index // PAGE, mask=valid, other=0).to(tl.int64)
        offset = index % PAGE
        k_c = _load_latent(
            latent_ptr + block * LATENT_BLOCK + offset * LATENT_STRIDE,
            scales_ptr + block * SCALES_BLOCK + offset * SCALES_STRIDE,
            valid,
            C,
            FORMAT,
            COMPUTE,
            BLOCK_N,
            BLOCK_C,
        )
        k_r = tl.load(
            rope_ptr + (block * ROPE_BLOCK + offset * ROPE_STRIDE)[:, None] + r[None, :],
            mask=valid[:, None] & (r < R)[None, :],
            other=0.0,
        )
        k_r = _narrow(k_r, COMPUTE)
        logits = dot(q_c, tl.trans(k_c), tl.zeros((BLOCK_H, BLOCK_N), tl.float32))
        logits = dot(q_r, tl.trans(k_r), logits) * factor
        logits = tl.where(valid[None, :], logits, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(logits, axis=1))
        # nothing seen so far: -inf minus -inf would be NaN
        base = tl.where(new_highest == float("-inf"), 0.0, new_highest)
        p = tl.exp2(logits - base[:, None])
        decay = tl.exp2(highest - base)
        total = total * decay + tl.sum(p, axis=1)
        acc = dot(cast_to(p, COMPUTE), k_c, acc * decay[:, None])
        highest = new_highest

    safe = tl.where(total == 0.0, 1.0, total)
    result = acc * (k_scale / safe)[:, None]
    # total 0: log2 gives -inf, which is what an empty row has
    lse = (highest + tl.log2(safe)) * 0.6931471805599453
    row = (split.to(tl.int64) * tokens + t) * heads + h
    mask = live & (c < C)[None, :]
    tl.store(out_ptr + row[:, None] * C + c[None, :], cast_to(result, out_ptr.dtype.element_ty), mask=mask)
    tl.store(lse_ptr + row, lse, mask=h < heads)


@triton.jit
def _load_latent(
    rows,
    scale_rows,
    valid,
    C: tl.constexpr,
    FORMAT: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """`[BLOCK_N, BLOCK_C]` in COMPUTE without the scale of an fp8 cache; 0 where there is no key.

    An invalid row is never read: 0 × NaN would be NaN, so the key itself is 0, not only its probability.
    """
    c = tl.arange(0, BLOCK_C)
    stored = tl.load(rows[:, None] + c[None, :], mask=valid[:, None] & (c < C)[None, :], other=0.0)
    if FORMAT == DS_MLA:
        TILES: tl.constexpr = BLOCK_C // 128
        tile = tl.arange(0, TILES)
        scale_mask = valid[:, None] & (tile < C // 128)[None, :]
        scales = tl.load(scale_rows[:, None] + tile[None, :], mask=scale_mask, other=0.0)
        values = tl.reshape(e4m3_to_f32(stored), (BLOCK_N, TILES, 128)) * scales[:, :, None]
        # the format's definition: the product passes through bf16
        stored = cast_to(tl.reshape(values, (BLOCK_N, BLOCK_C)), tl.bfloat16)
    return _narrow(stored, COMPUTE)


@triton.jit
def _narrow(x, COMPUTE: tl.constexpr):
    """x in COMPUTE; a cast to its own type would keep it in registers."""
    if x.dtype == COMPUTE:
        return x
    elif x.dtype == tl.float8e4nv:
        return cast_to(e4m3_to_f32(x), COMPUTE)
    else:
        return cast_to(x, COMPUTE)


@triton.jit
def quantize_query_kernel(q_ptr, out_ptr, stride_t, stride_h, heads, D: tl.constexpr, BLOCK: tl.constexpr):
    """One (token, head): q through e4m3 and back, into out `[T, H, D]`.

    A kernel of its own: a query that is converted inside of the attention stays in registers there, and the
    accumulator then spills.
    """
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BLOCK)
    q = tl.load(q_ptr + row // heads * stride_t + row % heads * stride_h + d, mask=d < D, other=0.0)
    q = e4m3_to_f32(to_e4m3(q.to(tl.float32)))
    tl.store(out_ptr + row * D + d, cast_to(q, out_ptr.dtype.element_ty), mask=d < D)


@triton.jit
def sparse_mla_merge_kernel(
    parts_ptr,  # [splits, T, H, C] float32
    part_lse_ptr,  # [splits, T, H] float32
    out_ptr,  # [T, H, C]
    lse_ptr,  # [T, H] float32
    rows,  # T × H
    splits,
    C: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """One (token, head): splits weighted by exp(lse). An empty split has -inf and weighs nothing."""
    row = tl.program_id(0).to(tl.int64)
    s = tl.arange(0, BLOCK_S)
    c = tl.arange(0, BLOCK_C)
    part_lse = tl.load(part_lse_ptr + s * tl.cast(rows, tl.int64) + row, mask=s < splits, other=float("-inf"))
    highest = tl.max(part_lse, axis=0)
    base = tl.where(highest == float("-inf"), 0.0, highest)
    total = tl.sum(tl.exp(part_lse - base), axis=0)
    safe = tl.where(total == 0.0, 1.0, total)
    acc = tl.zeros((BLOCK_C,), tl.float32)
    for split in range(splits):
        place = split * tl.cast(rows, tl.int64) + row
        weight = tl.exp(tl.load(part_lse_ptr + place) - base) / safe
        part = tl.load(parts_ptr + place * C + c, mask=c < C, other=0.0)
        acc += weight * part
    tl.store(out_ptr + row * C + c, cast_to(acc, out_ptr.dtype.element_ty), mask=c < C)
    tl.store(lse_ptr + row, highest + tl.log(safe))


def sparse_mla(
    q: Tensor, cache: LayerCache, batch: ForwardBatch, k: int, *, latent: int, scale: float
) -> tuple[Tensor, Tensor]:
    """q `[T, H, C + R]` → out `[T, H, C]` in q's dtype, lse float32 `[T, H]`; 0 and -inf for an empty row.

    Products are bf16 with float32 sums, or float32 where the query or the cache is. Raises ValueError.
    """
    check_arguments(q, cache, batch, k, latent)
    tokens, heads, width = q.shape
    columns = max(1, min(k, batch.max_length))  # rows fill from the left: longer rows do not exist
    compute = torch.float32 if torch.float32 in (q.dtype, cache.kv.dtype) else torch.bfloat16
    config, block_h = tiles_for(heads, compute, latent, width - latent, k, target_of(q.device))
    head_blocks = triton.cdiv(heads, block_h)
    splits = splits_for(tokens * head_blocks, columns)

    out = torch.empty(tokens, heads, latent, dtype=q.dtype, device=q.device)
    lse = torch.empty(tokens, heads, dtype=torch.float32, device=q.device)
    parts, part_lse = out, lse
    if splits > 1:
        parts = torch.empty(splits, tokens, heads, latent, dtype=torch.float32, device=q.device)
        part_lse = torch.empty(splits, tokens, heads, dtype=torch.float32, device=q.device)
    query = _quantized(q, compute) if cache.kv_dtype == "fp8" else q
    stored, scales, rope_keys = views(cache, latent, width - latent)
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
        LATENT_BLOCK=stored.stride(0),
        LATENT_STRIDE=stored.stride(1),
        SCALES_BLOCK=scales.stride(0),
        SCALES_STRIDE=scales.stride(1),
        ROPE_BLOCK=rope_keys.stride(0),
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
