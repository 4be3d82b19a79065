"""fused_q in Triton: one batched GEMM for the absorbed part, one launch for everything else."""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from paths.dsa_mrv2.kernels.arguments import Rotary
from paths.kernels.casting import cast_to
from paths.kernels.compile_specs import META, CompileSpec, of_cases, traced
from paths.kernels.index_k_write.triton_impl import check_hadamard
from paths.kernels.index_q_prepare.triton_impl import ELEMENT, fold_of, new_queries, store_index_query
from paths.kernels.launching import TileConfig, launch
from paths.kernels.rotation import rope_angles
from paths.kernels.tensors import check_tensor

OP = "fused_q"
TILES = TileConfig(num_warps=4, num_stages=1, tiles={"BLOCK_H": 16})  # 16 heads of 64 or 128 values
FLOATS = (torch.float32, torch.bfloat16)


@triton.jit
def rotated_heads(
    source,
    head_stride,
    head,
    cos,
    sin,
    position,
    lane,
    HEADS: tl.constexpr,
    ROPE: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """Rotary parts of BLOCK_H heads: float32 `[BLOCK_H, lanes]`, lanes from ROPE on mean nothing."""
    turns = lane < ROPE
    partner, c, s = rope_angles(cos, sin, position, lane, turns, ROPE, INTERLEAVED)
    mask = (head < HEADS)[:, None] & turns[None, :]
    start = source + head[:, None] * head_stride
    mine = tl.load(start + lane[None, :], mask=mask, other=0.0).to(tl.float32)
    other = tl.load(start + partner[None, :], mask=mask, other=0.0).to(tl.float32)
    return mine * c[None, :] + other * s[None, :]


@triton.jit
def rotated_index_heads(
    source,
    head,
    cos,
    sin,
    position,
    lane,
    HEADS: tl.constexpr,
    ROPE: tl.constexpr,
    DIM: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """Index queries float32 `[BLOCK_H, lanes]`, zero from DIM on; rounded as a separate rotation would."""
    mask = (head < HEADS)[:, None] & (lane < DIM)[None, :]
    plain = tl.load(source + head[:, None] * DIM + lane[None, :], mask=mask, other=0.0).to(tl.float32)
    turned = rotated_heads(source, DIM, head, cos, sin, position, lane, HEADS, ROPE, INTERLEAVED)
    rounded = cast_to(turned, source.dtype.element_ty).to(tl.float32)
    return tl.where((lane < ROPE)[None, :], rounded, plain)


@triton.jit
def fused_q_kernel(
    projected,
    index_w,
    cos,
    sin,
    positions,
    packed,
    prepared,
    weights,
    fold,
    row_stride,
    index_w_stride,
    HEADS: tl.constexpr,
    NOPE: tl.constexpr,
    LATENT: tl.constexpr,
    ROPE: tl.constexpr,
    ROPE_WIDTH: tl.constexpr,
    INDEX_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_WIDTH: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    INDEX_INTERLEAVED: tl.constexpr,
    HADAMARD: tl.constexpr,
    HEAD_BLOCKS: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """BLOCK_H heads of one token per program; blocks from HEAD_BLOCKS on are the indexer's."""
    token = tl.program_id(0).to(tl.int64)
    job = tl.program_id(1)
    row = projected + token * row_stride
    position = tl.load(positions + token)
    if job < HEAD_BLOCKS:
        head = job * BLOCK_H + tl.arange(0, BLOCK_H)
        rope_lane = tl.arange(0, ROPE_WIDTH)
        part = row + NOPE
        turned = rotated_heads(
            part, NOPE + ROPE, head, cos, sin, position, rope_lane, HEADS, ROPE, INTERLEAVED
        )
        out = packed + (token * HEADS + head)[:, None] * (LATENT + ROPE) + LATENT + rope_lane[None, :]
        mask = (head < HEADS)[:, None] & (rope_lane < ROPE)[None, :]
        tl.store(out, cast_to(turned, packed.dtype.element_ty), mask=mask)
    elif INDEX_HEADS > 0:
        head = (job - HEAD_BLOCKS) * BLOCK_H + tl.arange(0, BLOCK_H)
        lane = tl.arange(0, DIM_WIDTH)
        part = row + HEADS * (NOPE + ROPE)
        store_index_query(
            rotated_index_heads(
                part, head, cos, sin, position, lane, INDEX_HEADS, ROPE, DIM, INDEX_INTERLEAVED
            ),
            head,
            lane,
            index_w,
            prepared,
            weights,
            token,
            fold,
            index_w_stride,
            INDEX_HEADS,
            DIM,
            DIM_WIDTH,
            BLOCK_H,
            HADAMARD,
        )


def fused_q(
    projected: Tensor,
    w_uk: Tensor,
    rotary: Rotary,
    positions: Tensor,
    index_weights: Tensor | None,
    *,
    index_dim: int,
    index_dtype: str,
    hadamard: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """projected `[T, H × (N + R) (+ nI × dI)]` → q `[T, H, C + R]`, q' `[T, nI, dI]`, W float32 `[T, nI]`.

    The absorbed part is a batched GEMM that writes its columns of q in place. The kernel is memory-bound: per
    token it reads H × R + nI × (dI + 1) elements (the rotary ones twice, the second time from cache) and
    writes H × R elements, nI × dI values of the index dtype and nI × 4 bytes, each of them once.
    Raises ValueError.
    """
    check_tensor(OP, "w_uk", w_uk, dtype=FLOATS, shape=(None, None, None), contiguous=False)
    check_tensor(OP, "rotary.cos", rotary.cos, dtype=torch.float32, shape=(None, None), contiguous=True)
    check_tensor(OP, "projected", projected, dtype=w_uk.dtype, shape=(None, None), contiguous=False)
    heads, nope, latent = w_uk.shape
    rope = 2 * rotary.cos.shape[1]
    tokens, width, index_heads = projected.shape[0], heads * (nope + rope), 0
    if index_weights is not None:
        check_tensor(OP, "index_weights", index_weights, dtype=FLOATS, shape=(tokens, None), contiguous=False)
        index_heads = index_weights.shape[1]
    if projected.shape[1] < width + index_heads * index_dim:
        raise ValueError(
            f"{OP}: projected has {projected.shape[1]} columns, allowed are at least {heads} × "
            f"({nope} + {rope}) + {index_heads} × {index_dim}"
        )
    check_tensor(OP, "rotary.sin", rotary.sin, dtype=torch.float32, shape=rotary.cos.shape, contiguous=True)
    check_tensor(OP, "positions", positions, dtype=torch.int64, shape=(tokens,))
    prepared = weights = projected.new_empty(0)
    if index_weights is not None:
        check_hadamard(OP, index_dim, hadamard)
        if index_dim < rope:
            raise ValueError(f"{OP}: index_dim is {index_dim}, allowed is at least {rope}, the rotary part")
        prepared, weights = new_queries(OP, projected, tokens, index_heads, index_dim, index_dtype)
    packed = projected.new_empty(tokens, heads, latent + rope)
    block = TILES.tiles["BLOCK_H"]
    head_blocks = triton.cdiv(heads, block)
    launch(
        fused_q_kernel,
        (tokens, head_blocks + triton.cdiv(index_heads, block)),
        projected,
        index_weights,
        rotary.cos,
        rotary.sin,
        positions,
        packed,
        prepared if index_heads else None,
        weights if index_heads else None,
        fold_of(max(index_heads, 1), index_dim),
        projected.stride(0),
        0 if index_weights is None else index_weights.stride(0),
        config=TILES,
        HEADS=heads,
        NOPE=nope,
        LATENT=latent,
        ROPE=rope,
        ROPE_WIDTH=triton.next_power_of_2(rope),
        INDEX_HEADS=index_heads,
        DIM=index_dim,
        DIM_WIDTH=triton.next_power_of_2(index_dim),
        INTERLEAVED=rotary.interleaved,
        INDEX_INTERLEAVED=rotary.index_interleaved,
        HADAMARD=hadamard,
        HEAD_BLOCKS=head_blocks,
    )
    q_nope = projected[:, :width].unflatten(1, (heads, nope + rope))[..., :nope]
    if tokens:
        torch.bmm(q_nope.transpose(0, 1), w_uk, out=packed[..., :latent].transpose(0, 1))
    return packed, prepared, weights


def compile_specs() -> list[CompileSpec]:
    """Both models in every index dtype and without an indexer; and all that the checks run."""
    from paths.dsa_mrv2.kernels.fused_q.cases import Shape, check_cases, make_call

    specs = []
    v32 = Shape(heads=128, nope=128, index_heads=64)
    glm52 = Shape(heads=64, nope=192, index_heads=32, index_interleaved=True)
    for model, shape in (("v32", v32), ("glm52", glm52)):
        for index_dtype in (*ELEMENT, None):
            for hadamard in (False, True) if index_dtype else (False,):
                call = make_call(
                    torch.Generator(), META, rows=64, shape=shape.storing(index_dtype, hadamard=hadamard)
                )
                label = f"{model}, index {index_dtype}{', hadamard' if hadamard else ''}"
                specs += traced(OP, label, partial(fused_q, *call.args, **call.kwargs))
    return specs + of_cases(OP, fused_q, check_cases())
