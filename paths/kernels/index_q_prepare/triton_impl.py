"""index_q_prepare in Triton."""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from paths.kernels.casting import block_amax, cast_to, reciprocal, to_e4m3, ue8m0_scale
from paths.kernels.compile_specs import META, CompileSpec, of_cases, traced
from paths.kernels.index_k_write.triton_impl import check_hadamard
from paths.kernels.launching import TileConfig, launch
from paths.kernels.layouts import E4M3
from paths.kernels.rotation import hadamard_rows
from paths.kernels.tensors import check_tensor

OP = "index_q_prepare"
TILES = TileConfig(num_warps=4, num_stages=1, tiles={"BLOCK_H": 16})  # 16 heads × 128 values: 16 a thread
FLOATS = (torch.float32, torch.bfloat16)
ELEMENT = {"float32": torch.float32, "bf16": torch.bfloat16, "fp8": E4M3}


@triton.jit
def store_index_query(
    values,
    head,
    lane,
    w,
    prepared,
    weights,
    token,
    fold,
    w_stride,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_H: tl.constexpr,
    HADAMARD: tl.constexpr,
):
    """values float32 `[BLOCK_H, WIDTH]`, zero from DIM on: heads `head` of one token, and their weights."""
    if HADAMARD:
        values = hadamard_rows(values, BLOCK_H, WIDTH)
    live = head < HEADS
    folded = tl.load(w + token * w_stride + head, mask=live, other=0.0).to(tl.float32) * fold
    row = token * HEADS + head
    out = prepared + row[:, None] * DIM + lane[None, :]
    mask = live[:, None] & (lane < DIM)[None, :]
    if prepared.dtype.element_ty == tl.float8e4nv:
        scale = ue8m0_scale(block_amax(values, 1))
        tl.store(out, to_e4m3(values * reciprocal(scale)[:, None]), mask=mask)
        folded *= scale
    else:
        tl.store(out, cast_to(values, prepared.dtype.element_ty), mask=mask)
    tl.store(weights + row, folded, mask=live)


@triton.jit
def index_q_prepare_kernel(
    q,
    w,
    prepared,
    weights,
    fold,
    q_token_stride,
    q_head_stride,
    w_stride,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_H: tl.constexpr,
    HADAMARD: tl.constexpr,
):
    """BLOCK_H heads of one token per program."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    lane = tl.arange(0, WIDTH)
    mask = (head < HEADS)[:, None] & (lane < DIM)[None, :]
    source = q + token * q_token_stride + head.to(tl.int64)[:, None] * q_head_stride + lane[None, :]
    values = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    store_index_query(
        values,
        head,
        lane,
        w,
        prepared,
        weights,
        token,
        fold,
        w_stride,
        HEADS,
        DIM,
        WIDTH,
        BLOCK_H,
        HADAMARD,
    )


def index_q_prepare(q: Tensor, w: Tensor, *, index_dtype: str, hadamard: bool) -> tuple[Tensor, Tensor]:
    """q `[T, nI, dI]` after RoPE, w `[T, nI]` → q' `[T, nI, dI]` in the index dtype, W float32 `[T, nI]`.

    Memory-bound. It reads nI × (dI + 1) elements and writes nI × (dI bytes in fp8 + 4) per token, each of
    them once. Raises ValueError.
    """
    check_tensor(OP, "q", q, dtype=FLOATS, shape=(None, None, None), contiguous=False)
    tokens, heads, dim = q.shape
    check_tensor(OP, "w", w, dtype=FLOATS, shape=(tokens, heads), contiguous=False)
    check_hadamard(OP, dim, hadamard)
    prepared, weights = new_queries(OP, q, tokens, heads, dim, index_dtype)
    launch(
        index_q_prepare_kernel,
        (tokens, triton.cdiv(heads, TILES.tiles["BLOCK_H"])),
        q,
        w,
        prepared,
        weights,
        fold_of(heads, dim),
        q.stride(0),
        q.stride(1),
        w.stride(0),
        config=TILES,
        HEADS=heads,
        DIM=dim,
        WIDTH=triton.next_power_of_2(dim),
        HADAMARD=hadamard,
    )
    return prepared, weights


def new_queries(
    op: str, like: Tensor, tokens: int, heads: int, dim: int, index_dtype: str
) -> tuple[Tensor, Tensor]:
    """Memory for q' and W on the device of `like`. Raises ValueError."""
    if index_dtype not in ELEMENT:
        raise ValueError(f"{op}: index_dtype is {index_dtype!r}, allowed are {', '.join(ELEMENT)}")
    prepared = like.new_empty(tokens, heads, dim, dtype=ELEMENT[index_dtype])
    return prepared, like.new_empty(tokens, heads, dtype=torch.float32)


def fold_of(heads: int, dim: int) -> float:
    """nI^-1/2 × dI^-1/2, which the logits' weights carry."""
    return heads**-0.5 * dim**-0.5


def compile_specs() -> list[CompileSpec]:
    """V3.2 has 64 heads and GLM-5.2 has 32, of 128 values; and everything that the checks run."""
    from paths.kernels.index_q_prepare.cases import check_cases

    specs = []
    for model, heads in (("v32", 64), ("glm52", 32)):
        for index_dtype in ELEMENT:
            for hadamard in (False, True):
                q = torch.empty(64, heads, 128, dtype=torch.bfloat16, device=META)
                w = torch.empty(64, 2816, dtype=torch.bfloat16, device=META)[:, -heads:]
                specs += traced(
                    OP,
                    f"{model}, {index_dtype}{', hadamard' if hadamard else ''}",
                    partial(index_q_prepare, q, w, index_dtype=index_dtype, hadamard=hadamard),
                )
    return specs + of_cases(OP, index_q_prepare, check_cases())
