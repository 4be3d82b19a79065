"""Index scores on Triton: one kernel for keys in one piece and for keys in pages."""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from paths.engine.batch import PAGE_SIZE, LayerCache
from paths.kernels.casting import cast_to, dot, e4m3_to_f32
from paths.kernels.compile_specs import META, CompileSpec, of_cases, traced
from paths.kernels.launching import Target, TileConfig, launch, target_of
from paths.kernels.layouts import E4M3, index_views
from paths.kernels.tensors import check_tensor

OP = "mqa_logits"
DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16, "fp8": E4M3}
MAX_HEADS = 128
BLOCK_KEYS = 128  # rows of the matrix product: 128 suit wgmma, tcgen05 and mfma, whatever the number of rows
FLOAT32_KEYS = 32  # no matrix instruction is IEEE
ROW_BLOCKS = ((1, 1), (8, 4), (1 << 30, 32))  # rows per request up to … → query rows of one program


@triton.jit
def mqa_logits_kernel(
    q_ptr,  # [T, nI, dI]
    weights_ptr,  # [T, nI] float32
    keys_ptr,  # [N, dI], or [blocks, page, dI]
    scales_ptr,  # [N] or [blocks, page] float32, or none
    groups_ptr,  # [T] int32: rows with the same number share their keys; first key, or row of the block table
    ends_ptr,  # [T] int32: end of the keys, or length
    table_ptr,  # PAGED: [rows, blocks] int32
    out_ptr,  # [T, width] float32
    q_stride_t,
    q_stride_h,
    weights_stride,
    key_stride,
    block_stride,
    scale_block_stride,
    table_stride,
    out_stride,
    tokens,
    heads,
    at_least,
    D: tl.constexpr,
    PAGED: tl.constexpr,
    PAGE: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """BLOCK_T query rows against columns j .. j + BLOCK_N of each, request by request."""
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    first_column = tl.program_id(0) * BLOCK_N
    row = tl.program_id(1) * BLOCK_T
    row_end = tl.minimum(row + BLOCK_T, tokens)
    near = tl.arange(0, BLOCK_T)
    d = tl.arange(0, BLOCK_D)
    while row < row_end:
        group = tl.load(groups_ptr + row)
        inside = row + near < row_end
        same = tl.load(groups_ptr + row + near, mask=inside, other=-1) == group
        count = tl.min(tl.where(same & inside, BLOCK_T, near), axis=0)
        lengths = tl.load(ends_ptr + row + near, mask=near < count, other=0)
        if not PAGED:
            lengths = tl.where(near < count, lengths - group, 0)
        longest = tl.max(lengths, axis=0)
        if (first_column < longest) & (longest > at_least):
            seen = column < longest
            if PAGED:
                pages = table_ptr + group.to(tl.int64) * table_stride + column // PAGE
                block = tl.load(pages, mask=seen, other=0).to(tl.int64)
                key_rows = keys_ptr + block * block_stride + (column % PAGE) * key_stride
                scale_rows = scales_ptr + block * scale_block_stride + column % PAGE
            else:
                key_rows = keys_ptr + (group.to(tl.int64) + column) * key_stride
                scale_rows = scales_ptr + group.to(tl.int64) + column
            keys = tl.load(key_rows[:, None] + d[None, :], mask=seen[:, None] & (d < D)[None, :], other=0.0)
            keys = _matrix_operand(keys, WIDEN)
            scales = tl.full((BLOCK_N,), 1.0, tl.float32)
            if keys_ptr.dtype.element_ty == tl.float8e4nv:
                scales = tl.load(scale_rows, mask=seen, other=0.0)
            for first in tl.range(row, row + count, BLOCK_Q, disable_licm=True):
                _score_rows(
                    q_ptr,
                    weights_ptr,
                    ends_ptr,
                    out_ptr,
                    keys,
                    scales,
                    column,
                    group,
                    first,
                    row + count,
                    q_stride_t,
                    q_stride_h,
                    weights_stride,
                    out_stride,
                    heads,
                    at_least,
                    D,
                    PAGED,
                    WIDEN,
                    BLOCK_Q,
                    BLOCK_H,
                    BLOCK_N,
                    BLOCK_D,
                )
        row += count


@triton.jit
def _score_rows(
    q_ptr,
    weights_ptr,
    ends_ptr,
    out_ptr,
    keys,
    scales,
    column,
    group,
    first,
    stop,
    q_stride_t,
    q_stride_h,
    weights_stride,
    out_stride,
    heads,
    at_least,
    D: tl.constexpr,
    PAGED: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """BLOCK_Q query rows of one request in one product: all heads of all of them stand side by side."""
    d = tl.arange(0, BLOCK_D)
    lane = tl.arange(0, BLOCK_Q * BLOCK_H)
    t = (first + lane // BLOCK_H).to(tl.int64)
    h = lane % BLOCK_H
    live = (t < stop) & (h < heads)
    q = tl.load(
        q_ptr + (t * q_stride_t + h * q_stride_h)[:, None] + d[None, :],
        mask=live[:, None] & (d < D)[None, :],
        other=0.0,
    )
    weights = tl.load(weights_ptr + t * weights_stride + h, mask=live, other=0.0)
    products = tl.zeros((BLOCK_N, BLOCK_Q * BLOCK_H), tl.float32)
    products = dot(keys, tl.trans(_matrix_operand(q, WIDEN)), products)
    # the ReLU stands before the signed weight; padded heads are left out by their mask, not by a zero
    products = tl.where((products > 0.0) | (products != products), products, 0.0) * weights[None, :]
    products = tl.where(live[None, :], products, 0.0)
    scores = tl.sum(tl.reshape(products, (BLOCK_N, BLOCK_Q, BLOCK_H)), axis=2) * scales[:, None]
    rows = (first + tl.arange(0, BLOCK_Q)).to(tl.int64)
    length = tl.load(ends_ptr + rows, mask=rows < stop, other=0)
    if not PAGED:
        length -= group
    length = tl.where((rows < stop) & (length > at_least), length, 0)
    tl.store(
        out_ptr + (rows * out_stride)[None, :] + column[:, None],
        scores,
        mask=column[:, None] < length[None, :],
    )


@triton.jit
def _matrix_operand(x, WIDEN: tl.constexpr):
    """e4m3 as bf16, which holds it exactly, where matrix instructions do not take it."""
    if WIDEN:
        return cast_to(e4m3_to_f32(x), tl.bfloat16)
    else:
        return x


def mqa_logits(
    q: Tensor,
    weights: Tensor,
    keys: Tensor,
    scales: Tensor | None,
    starts: Tensor,
    ends: Tensor,
    *,
    width: int,
) -> Tensor:
    """q `[T, nI, dI]`, weights float32 `[T, nI]`, keys `[N, dI]`, scales float32 `[N]` → `[T, width]`.

    Column j of row t is key starts[t] + j; columns from ends[t] on are not written. Raises ValueError.
    """
    _check_query(OP, q, weights)
    tokens, _, dim = q.shape
    check_tensor(OP, "keys", keys, dtype=q.dtype, shape=(None, dim))
    check_tensor(OP, "starts", starts, dtype=torch.int32, shape=(tokens,))
    check_tensor(OP, "ends", ends, dtype=torch.int32, shape=(tokens,))
    if (scales is not None) != (q.dtype is E4M3):
        raise ValueError(f"{OP}: scales is {type(scales).__name__} for {q.dtype}; only e4m3 keys have scales")
    if scales is not None:
        check_tensor(OP, "scales", scales, dtype=torch.float32, shape=(keys.shape[0],))
    out = torch.empty(tokens, width, dtype=torch.float32, device=q.device)
    # rows of one request see the same keys: blocks of many rows pay
    _launch(
        q,
        weights,
        keys,
        scales,
        starts,
        ends,
        None,
        out,
        strides=(keys.stride(0), 0, 0, 0),
        rows_per_request=tokens,
        at_least=0,
    )
    return out


def paged_mqa_logits(
    q: Tensor,
    weights: Tensor,
    cache: LayerCache,
    req_rows: Tensor,
    lengths: Tensor,
    block_table: Tensor,
    *,
    width: int,
    at_least: int = 0,
) -> Tensor:
    """q `[T, nI, dI]` against the paged index cache → float32 `[T, width]`; see the definition.

    Nothing is written for columns from a row's length on, and for rows of length ≤ at_least. Decode is
    memory-bound: each key is read once per 1, 4 or 32 rows of its request (132 bytes in fp8 with the scale),
    each score written once. Raises ValueError.
    """
    keys, scales = check_paged(OP, q, weights, cache, req_rows, lengths, block_table)
    return paged_scores(
        q, weights, keys, scales, req_rows, lengths, block_table, width=width, at_least=at_least
    )


def paged_scores(
    q: Tensor,
    weights: Tensor,
    keys: Tensor,
    scales: Tensor | None,
    req_rows: Tensor,
    lengths: Tensor,
    block_table: Tensor,
    *,
    width: int,
    at_least: int,
) -> Tensor:
    """`paged_mqa_logits` of arguments that `check_paged` has seen; keys and scales are what it returns."""
    tokens = q.shape[0]
    out = torch.empty(tokens, width, dtype=torch.float32, device=q.device)
    _launch(
        q,
        weights,
        keys,
        scales,
        req_rows,
        lengths,
        block_table,
        out,
        strides=(
            keys.stride(1),
            keys.stride(0),
            0 if scales is None else scales.stride(0),
            block_table.stride(0),
        ),
        rows_per_request=triton.cdiv(tokens, max(1, block_table.shape[0])),
        at_least=at_least,
    )
    return out


def _launch(
    q: Tensor,
    weights: Tensor,
    keys: Tensor,
    scales: Tensor | None,
    groups: Tensor,
    ends: Tensor,
    block_table: Tensor | None,
    out: Tensor,
    *,
    strides: tuple[int, int, int, int],
    rows_per_request: int,
    at_least: int,
) -> None:
    tokens, heads, dim = q.shape
    target = target_of(q.device)
    config = _tiles(q.dtype, heads, dim, rows_per_request, target)
    launch(
        mqa_logits_kernel,
        lambda c: (triton.cdiv(out.shape[1], c["BLOCK_N"]), triton.cdiv(tokens, c["BLOCK_T"])),
        q,
        weights,
        keys,
        weights if scales is None else scales,
        groups,
        ends,
        groups if block_table is None else block_table,
        out,
        q.stride(0),
        q.stride(1),
        weights.stride(0),
        *strides,
        out.stride(0),
        tokens,
        heads,
        at_least,
        config=config,
        D=dim,
        PAGED=block_table is not None,
        PAGE=PAGE_SIZE,
        WIDEN=q.dtype is E4M3 and not target.has_e4m3_matrix,
    )


def _tiles(dtype: torch.dtype, heads: int, dim: int, rows_per_request: int, target: Target) -> TileConfig:
    block_t = next(block for limit, block in ROW_BLOCKS if rows_per_request <= limit)
    block_h = max(16, triton.next_power_of_2(heads))
    # 128 columns of heads fill a product; a single query row cannot
    block_q = max(1, min(block_t, 128 // block_h)) if dtype is not torch.float32 else 1
    tiles = {
        "BLOCK_T": block_t,
        "BLOCK_Q": block_q,
        "BLOCK_H": block_h,
        "BLOCK_N": FLOAT32_KEYS if dtype is torch.float32 else BLOCK_KEYS,
        "BLOCK_D": max(32, triton.next_power_of_2(dim)),
    }
    # two rows of queries a product double the accumulator: twice the warps hold it. On CDNA eight of them get
    # half of the registers each, and four have enough
    warps = 8 if block_q > 1 and target.kind != "hip" else 4
    return TileConfig(num_warps=warps, num_stages=2, tiles=tiles)


def check_paged(
    op: str,
    q: Tensor,
    weights: Tensor,
    cache: LayerCache,
    req_rows: Tensor,
    lengths: Tensor,
    block_table: Tensor,
) -> tuple[Tensor, Tensor | None]:
    """Keys `[B, page, dI]` and, in fp8, scales float32 `[B, page]`. Raises ValueError in the name of `op`."""
    _check_query(op, q, weights)
    if cache.index is None:
        raise ValueError(f"{op}: cache has no index tensor; a layer that shares its indexer scores nothing")
    if cache.index_dtype not in DTYPES:
        raise ValueError(f"{op}: index_dtype is {cache.index_dtype!r}, allowed are {', '.join(DTYPES)}")
    if q.dtype is not DTYPES[cache.index_dtype]:
        raise ValueError(
            f"{op}: q has dtype {q.dtype}, allowed is {DTYPES[cache.index_dtype]} as in the cache"
        )
    tokens, _, dim = q.shape
    check_tensor(op, "req_rows", req_rows, dtype=torch.int32, shape=(tokens,))
    check_tensor(op, "lengths", lengths, dtype=torch.int32, shape=(tokens,))
    check_tensor(op, "block_table", block_table, dtype=torch.int32, shape=(None, None))
    if cache.index_dtype == "fp8":
        packed = (None, PAGE_SIZE * (dim + 4))
        check_tensor(op, "cache.index", cache.index, dtype=torch.uint8, shape=packed)
        return index_views(cache.index)
    check_tensor(op, "cache.index", cache.index, dtype=q.dtype, shape=(None, PAGE_SIZE, dim))
    return cache.index, None


def _check_query(op: str, q: Tensor, weights: Tensor) -> None:
    check_tensor(op, "q", q, dtype=tuple(DTYPES.values()), shape=(None, None, None))
    tokens, heads, dim = q.shape
    check_tensor(op, "weights", weights, dtype=torch.float32, shape=(tokens, heads))
    if not 1 <= heads <= MAX_HEADS:
        raise ValueError(f"{op}: q has {heads} heads, allowed are 1 to {MAX_HEADS}")
    if dim > 256:
        raise ValueError(f"{op}: q has heads of {dim} values, allowed are up to 256")


def compile_specs() -> list[CompileSpec]:
    """V3.2 (64 heads) and GLM-5.2 (32): decode, with 4 rows a request, prefill; all that the checks run."""
    from paths.kernels.mqa_logits.cases import check_cases, production_paged, production_ragged

    specs = []
    for label, heads in (("v32", 64), ("glm52", 32)):
        for index_dtype in ("bf16", "fp8"):
            for rows in (1, 4, 512):
                paged = partial(
                    paged_mqa_logits,
                    **production_paged(index_dtype, heads=heads, rows=rows, device=META),
                )
                specs += traced(OP, f"{label}, {index_dtype}, paged, {rows} rows", paged, matrix=True)
            ragged = partial(mqa_logits, **production_ragged(index_dtype, heads=heads, device=META))
            specs += traced(OP, f"{label}, {index_dtype}, ragged", ragged, matrix=True)
    for form, function in (("ragged", mqa_logits), ("paged", paged_mqa_logits)):
        specs += of_cases(OP, function, [case for case in check_cases() if case.name.startswith(form)])
    return specs
