"""dense_mha on Triton: one block of query rows of one request and head, online softmax over its keys."""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from paths.kernels.casting import cast_to, dot
from paths.kernels.compile_specs import META, CompileSpec, of_cases, traced
from paths.kernels.launching import Target, TileConfig, launch, target_of
from paths.kernels.tensors import check_tensor

OP = "dense_mha"
FLOATS = (torch.float32, torch.bfloat16)
MAX_DIM = 512

NVIDIA_TILE = (128, 64, 8, 2)  # query rows, keys, warps, stages
NVIDIA_WIDE_TILE = (128, 32, 8, 2)  # values wider than 128: their accumulator takes half of the registers
HIP_TILE = (64, 32, 4, 1)  # 64 KiB of LDS hold no more
FLOAT32_TILE = (16, 32, 4, 1)  # no matrix instruction is IEEE


@triton.jit
def dense_mha_kernel(
    q_ptr,  # [T, H, Dk]
    k_ptr,  # [S, H, Dk]
    v_ptr,  # [S, H, Dv]
    query_starts_ptr,  # [B + 1] int32
    key_starts_ptr,  # [B + 1] int32
    out_ptr,  # [T, H, Dv]
    lse_ptr,  # [T, H] float32
    q_stride_t,
    q_stride_h,
    k_stride_t,
    k_stride_h,
    v_stride_t,
    v_stride_h,
    heads,
    scale,
    DK: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD: tl.constexpr,  # largest power of two in DK
    TAIL: tl.constexpr,  # tile for the rest of it, or 0
    BLOCK_V: tl.constexpr,
):
    """Blocks of few rows are launched last block first: it has the most keys."""
    request = tl.program_id(2)
    h = tl.program_id(1).to(tl.int64)
    first_query = tl.load(query_starts_ptr + request)
    queries = tl.load(query_starts_ptr + request + 1) - first_query
    first_key = tl.load(key_starts_ptr + request)
    keys = tl.load(key_starts_ptr + request + 1) - first_key
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    if block * BLOCK_M >= queries:
        return
    m = block * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, HEAD)
    e = tl.arange(0, BLOCK_V)
    live = (m < queries)[:, None]
    rows = (first_query + m).to(tl.int64)
    q_rows = q_ptr + (rows * q_stride_t + h * q_stride_h)[:, None]
    q = tl.load(q_rows + d[None, :], mask=live, other=0.0)
    if TAIL > 0:
        tail = HEAD + tl.arange(0, TAIL)
        q_tail = tl.load(q_rows + tail[None, :], mask=live & (tail < DK)[None, :], other=0.0)

    factor = scale * 1.4426950408889634  # exp2 instead of exp
    shift = keys - queries
    highest = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_V), tl.float32)
    stop = tl.minimum(keys, (block + 1) * BLOCK_M + shift)
    for start in tl.range(0, stop, BLOCK_N):
        n = start + tl.arange(0, BLOCK_N)
        inside = n < keys
        columns = (first_key + n).to(tl.int64)
        k_rows = k_ptr + (columns * k_stride_t + h * k_stride_h)[:, None]
        k = tl.load(k_rows + d[None, :], mask=inside[:, None], other=0.0)
        logits = dot(q, tl.trans(k), tl.zeros((BLOCK_M, BLOCK_N), tl.float32))
        if TAIL > 0:
            k_tail = tl.load(k_rows + tail[None, :], mask=inside[:, None] & (tail < DK)[None, :], other=0.0)
            logits = dot(q_tail, tl.trans(k_tail), logits)
        seen = inside[None, :] & (n[None, :] <= m[:, None] + shift)
        logits = tl.where(seen, logits * factor, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(logits, axis=1))
        # nothing seen so far: -inf minus -inf would be NaN
        base = tl.where(new_highest == float("-inf"), 0.0, new_highest)
        p = tl.exp2(logits - base[:, None])
        decay = tl.exp2(highest - base)
        total = total * decay + tl.sum(p, axis=1)
        v_rows = v_ptr + (columns * v_stride_t + h * v_stride_h)[:, None]
        # a value behind the last key is 0 itself: a probability of 0 times NaN would be NaN
        v = tl.load(v_rows + e[None, :], mask=inside[:, None] & (e < DV)[None, :], other=0.0)
        acc = dot(cast_to(p, v_ptr.dtype.element_ty), v, acc * decay[:, None])
        highest = new_highest

    safe = tl.where(total == 0.0, 1.0, total)
    out_rows = (rows * heads + h)[:, None] * DV + e[None, :]
    result = cast_to(acc / safe[:, None], out_ptr.dtype.element_ty)
    tl.store(out_ptr + out_rows, result, mask=live & (e < DV)[None, :])
    lse = (highest + tl.log2(safe)) * 0.6931471805599453
    tl.store(lse_ptr + rows * heads + h, lse, mask=m < queries)


def dense_mha(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    *,
    scale: float,
    max_queries: int,
) -> tuple[Tensor, Tensor]:
    """q `[T, H, Dk]`, k `[S, H, Dk]`, v `[S, H, Dv]` → out `[T, H, Dv]` in q's dtype, lse float32 `[T, H]`.

    Compute-bound from a few hundred rows a request: keys and values are read once per 128 query rows. Raises
    ValueError.
    """
    check_tensor(OP, "q", q, dtype=FLOATS, shape=(None, None, None))
    tokens, heads, dk = q.shape
    check_tensor(OP, "k", k, dtype=q.dtype, shape=(None, heads, dk))
    check_tensor(OP, "v", v, dtype=q.dtype, shape=(k.shape[0], heads, None))
    check_tensor(OP, "query_starts", query_starts, dtype=torch.int32, shape=(None,))
    requests = query_starts.shape[0] - 1
    check_tensor(OP, "key_starts", key_starts, dtype=torch.int32, shape=(requests + 1,))
    dv = v.shape[-1]
    if not (16 <= dk <= MAX_DIM and 1 <= dv <= MAX_DIM):
        raise ValueError(f"{OP}: heads have {dk} and {dv} values, allowed are 16 and 1 to {MAX_DIM}")
    out = torch.zeros(tokens, heads, dv, dtype=q.dtype, device=q.device)
    lse = torch.full((tokens, heads), -torch.inf, dtype=torch.float32, device=q.device)
    launch(
        dense_mha_kernel,
        lambda c: (triton.cdiv(max_queries, c["BLOCK_M"]), heads, requests),
        q,
        k,
        v,
        query_starts,
        key_starts,
        out,
        lse,
        q.stride(0),
        q.stride(1),
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        heads,
        float(scale),
        config=_tiles(q.dtype, dk, dv, target_of(q.device)),
        DK=dk,
        DV=dv,
    )
    return out, lse


def _tiles(dtype: torch.dtype, dk: int, dv: int, target: Target) -> TileConfig:
    if dtype is torch.float32:
        tile = FLOAT32_TILE
    elif target.kind == "hip":
        tile = HIP_TILE
    else:
        tile = NVIDIA_TILE if dv <= 128 else NVIDIA_WIDE_TILE
    block_m, block_n, warps, stages = tile
    head = 1 << (dk.bit_length() - 1)
    tiles = {
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "HEAD": head,
        "TAIL": max(16, triton.next_power_of_2(dk - head)) if dk > head else 0,
        "BLOCK_V": max(16, triton.next_power_of_2(dv)),
    }
    return TileConfig(num_warps=warps, num_stages=stages, tiles=tiles)


def compile_specs() -> list[CompileSpec]:
    """V3.2 (128 heads, 192 and 128 wide) and GLM-5.2 (64 heads, 256 and 256); all that the checks run."""
    from paths.kernels.dense_mha.cases import check_cases, production_call

    specs = []
    for label, heads, dk, dv in (("v32", 128, 192, 128), ("glm52", 64, 256, 256)):
        call = partial(dense_mha, **production_call(heads=heads, dk=dk, dv=dv, device=META))
        specs += traced(OP, label, call, matrix=True)
    return specs + of_cases(OP, dense_mha, check_cases())
