"""topk on Triton: a radix search for the k-th score, then a compaction in index order."""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from paths.kernels.compile_specs import META, CompileSpec, of_cases, traced
from paths.kernels.launching import TileConfig, launch
from paths.kernels.tensors import check_tensor

OP = "topk"
MAX_K = 8192  # indices that one program sorts
BLOCK = 4096  # scores per step
WARPS = 8


@triton.jit
def order_key(score):
    """float32 → uint32 of the same order; NaN is -inf, and -0 is 0."""
    score = tl.where(score != score, float("-inf"), score)
    score = tl.where(score == 0.0, 0.0, score)
    bits = score.to(tl.int32, bitcast=True)
    ordered = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return ordered.to(tl.uint32, bitcast=True) ^ 0x80000000


@triton.jit
def topk_kernel(
    scores_ptr,  # [T, N] float32
    lengths_ptr,  # [T] int32
    out_ptr,  # [T, k] int32
    scores_stride,
    out_stride,
    k,
    ORDERED: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One row: four rounds of 8 bits find the k-th key; a fifth pass writes what is above it, and ties."""
    t = tl.program_id(0).to(tl.int64)
    row = scores_ptr + t * scores_stride
    out = out_ptr + t * out_stride
    length = tl.maximum(tl.load(lengths_ptr + t), 0)
    lane = tl.arange(0, BLOCK)
    if length <= k:
        for start in tl.range(0, k, BLOCK):
            column = start + lane
            tl.store(out + column, tl.where(column < length, column, -1), mask=column < k)
    else:
        threshold, ties_left = _kth_key(row, length, k, BLOCK)
        taken = 0
        ties = 0
        for start in tl.range(0, length, BLOCK):
            column = start + lane
            live = column < length
            key = order_key(tl.load(row + column, mask=live, other=float("-inf")))
            equal = (live & (key == threshold)).to(tl.int32)
            # of equal scores the lower index: ties are counted in index order
            tie_rank = ties + tl.cumsum(equal, 0) - equal
            chosen = (live & (key > threshold)) | ((equal != 0) & (tie_rank < ties_left))
            one = chosen.to(tl.int32)
            place = taken + tl.cumsum(one, 0) - one
            tl.store(out + place, column, mask=chosen)
            taken += tl.sum(one, 0)
            ties += tl.sum(equal, 0)
        if ORDERED:
            # what other threads of this program stored is read next
            tl.debug_barrier()
            _sort_row(row, out, k, BLOCK_K)


@triton.jit
def _kth_key(row, length, k, BLOCK: tl.constexpr):
    """The k-th largest key, and how many of the keys equal to it belong to the k largest."""
    bins = tl.arange(0, 256)
    lane = tl.arange(0, BLOCK)
    prefix = tl.zeros((), tl.uint32)
    left = k
    for step in tl.static_range(4):
        counts = tl.zeros((256,), tl.int32)
        for start in tl.range(0, length, BLOCK):
            column = start + lane
            live = column < length
            key = order_key(tl.load(row + column, mask=live, other=float("-inf")))
            if step > 0:
                live = live & ((key >> (32 - 8 * step)) == prefix)
            digit = ((key >> (24 - 8 * step)) & 0xFF).to(tl.int32)
            counts += tl.histogram(digit, 256, mask=live)
        above = tl.sum(counts, 0) - tl.cumsum(counts, 0)
        here = (above < left) & (above + counts >= left)
        prefix = (prefix << 8) | tl.sum(tl.where(here, bins, 0), 0).to(tl.uint32)
        left -= tl.sum(tl.where(here, above, 0), 0)
    return prefix, left


@triton.jit
def _sort_row(row, out, k, BLOCK_K: tl.constexpr):
    """The k chosen indices in place, best first: score and index packed in one integer."""
    lane = tl.arange(0, BLOCK_K)
    live = lane < k
    index = tl.load(out + lane, mask=live, other=0)
    key = order_key(tl.load(row + index, mask=live, other=float("-inf")))
    packed = ((0xFFFFFFFF - key.to(tl.int64)) << 31) | index.to(tl.int64)
    packed = tl.sort(tl.where(live, packed, 0x7FFFFFFFFFFFFFFF))
    tl.debug_barrier()
    tl.store(out + lane, (packed & 0x7FFFFFFF).to(tl.int32), mask=live)


def topk(
    scores: Tensor, lengths: Tensor, k: int, *, ordered: bool = True, out: Tensor | None = None
) -> Tensor:
    """scores float32 `[T, N]`, lengths int32 `[T]` → indices int32 `[T, k]`, −1 where there is none.

    Memory-bound: a row of length L > k is read five times, 4 × L bytes each, of which the first comes from
    memory and the others from L2 (128K scores are 512 KiB); k × 4 bytes are written once, and once more where
    they are sorted. Rows up to k read no score. Exact for any distribution of scores: nothing is buffered, so
    nothing overflows. Raises ValueError.
    """
    rows = scores.shape[0]
    check_tensor(OP, "scores", scores, dtype=torch.float32, shape=(None, None))
    check_tensor(OP, "lengths", lengths, dtype=torch.int32, shape=(rows,))
    if not 1 <= k <= MAX_K:
        raise ValueError(f"{OP}: k is {k}, allowed is 1 to {MAX_K}")
    if out is None:
        out = torch.empty(rows, k, dtype=torch.int32, device=scores.device)
    check_tensor(OP, "out", out, dtype=torch.int32, shape=(rows, k))
    launch(
        topk_kernel,
        (rows,),
        scores,
        lengths,
        out,
        scores.stride(0),
        out.stride(0),
        k,
        config=TileConfig(num_warps=WARPS, num_stages=1, tiles={"BLOCK": BLOCK}),
        ORDERED=ordered,
        BLOCK_K=triton.next_power_of_2(k),
    )
    return out


def compile_specs() -> list[CompileSpec]:
    """k 2048 of both models, in both orders; and all that the checks run."""
    from paths.kernels.topk.cases import check_cases

    scores = torch.empty(64, 131072, dtype=torch.float32, device=META)
    lengths = torch.empty(64, dtype=torch.int32, device=META)
    return [
        spec
        for ordered in (True, False)
        for spec in traced(
            OP, f"v32 and glm52, ordered {ordered}", partial(topk, scores, lengths, 2048, ordered=ordered)
        )
    ] + of_cases(OP, topk, check_cases())
