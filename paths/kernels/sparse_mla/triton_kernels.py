"""The Triton kernels of sparse_mla: attention over one split of the selection, and the merge of splits."""

import triton
import triton.language as tl

from paths.kernels.casting import cast_to, dot, e4m3_to_f32, to_e4m3

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
    LATENT_STRIDE: tl.constexpr,  # from one token of the cache to the next, as are the next two
    SCALES_STRIDE: tl.constexpr,
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
        block = tl.load(table + index // PAGE, mask=valid, other=0)
        slot = block.to(tl.int64) * PAGE + index % PAGE
        k_c = _load_latent(
            latent_ptr + slot * LATENT_STRIDE,
            scales_ptr + slot * SCALES_STRIDE,
            valid,
            C,
            FORMAT,
            COMPUTE,
            BLOCK_N,
            BLOCK_C,
        )
        k_r = tl.load(
            rope_ptr + (slot * ROPE_STRIDE)[:, None] + r[None, :],
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
