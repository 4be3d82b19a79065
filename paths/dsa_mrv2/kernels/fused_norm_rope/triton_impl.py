"""fused_norm_rope in Triton: one launch whose second grid axis selects the job."""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from paths.dsa_mrv2.kernels.arguments import LatentNorms, Rotary
from paths.dsa_mrv2.kernels.fused_norm_rope.composed import LAYER_NORM_EPS
from paths.engine.batch import PAGE_SIZE, ForwardBatch, LayerCache
from paths.kernels.casting import cast_to
from paths.kernels.compile_specs import META, CompileSpec, of_cases, traced
from paths.kernels.index_k_write.triton_impl import check_hadamard, key_arguments, store_index_key
from paths.kernels.launching import TileConfig, launch
from paths.kernels.layouts import DS_MLA_TILE
from paths.kernels.mla_cache_write.triton_impl import cache_arguments, store_latent, store_rope_key
from paths.kernels.rotation import rope_angles
from paths.kernels.tensors import check_tensor

OP = "fused_norm_rope"
TILES = TileConfig(num_warps=4, num_stages=1, tiles={"BLOCK_K": 1024})
FLOATS = (torch.float32, torch.bfloat16)

# The second grid axis: without an indexer it ends before INDEX_JOB, without ranking before RESET_JOB.
LATENT_JOB = tl.constexpr(0)
QUERY_JOB = tl.constexpr(1)
INDEX_JOB = tl.constexpr(2)
RESET_JOB = tl.constexpr(3)


@triton.jit
def normed(x, weight, eps, SIZE: tl.constexpr):
    """RMSNorm of x float32 over SIZE values; lanes behind them are zero."""
    return x * tl.rsqrt(tl.sum(x * x) / SIZE + eps) * weight


@triton.jit
def norm_query(source, weight, eps, out, Q: tl.constexpr, WIDTH: tl.constexpr):
    """Query latent → out `[Q]`."""
    lane = tl.arange(0, WIDTH)
    live = lane < Q
    x = tl.load(source + lane, mask=live, other=0.0).to(tl.float32)
    g = tl.load(weight + lane, mask=live, other=0.0)
    tl.store(out + lane, cast_to(normed(x, g, eps, Q), out.dtype.element_ty), mask=live)


@triton.jit
def fill_unused(out, width, BLOCK: tl.constexpr):
    """−1 into out `[width]`."""
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        tl.store(out + column, tl.full((BLOCK,), -1, tl.int32), mask=column < width)


@triton.jit
def norm_latent(source, weight, eps, LATENT: tl.constexpr, WIDTH: tl.constexpr):
    """float32 `[WIDTH]`, rounded to the model's dtype as a separate op would leave it."""
    lane = tl.arange(0, WIDTH)
    live = lane < LATENT
    x = tl.load(source + lane, mask=live, other=0.0).to(tl.float32)
    g = tl.load(weight + lane, mask=live, other=0.0)
    return cast_to(normed(x, g, eps, LATENT), source.dtype.element_ty).to(tl.float32)


@triton.jit
def rotate_key(
    source, cos, sin, position, ROPE: tl.constexpr, WIDTH: tl.constexpr, INTERLEAVED: tl.constexpr
):
    """float32 `[WIDTH]`, rounded to the model's dtype."""
    lane = tl.arange(0, WIDTH)
    turns = lane < ROPE
    partner, c, s = rope_angles(cos, sin, position, lane, turns, ROPE, INTERLEAVED)
    mine = tl.load(source + lane, mask=turns, other=0.0).to(tl.float32)
    other = tl.load(source + partner, mask=turns, other=0.0).to(tl.float32)
    return cast_to(mine * c + other * s, source.dtype.element_ty).to(tl.float32)


@triton.jit
def norm_rotate_index_key(
    source,
    weight,
    bias,
    cos,
    sin,
    position,
    eps,
    ROPE: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """LayerNorm, then RoPE of the first ROPE values: float32 `[WIDTH]`, each rounded to the model's dtype.

    A lane norms its partner's value again from memory, which is cheaper than a shuffle through shared memory.
    """
    DTYPE: tl.constexpr = source.dtype.element_ty
    lane = tl.arange(0, WIDTH)
    live = lane < DIM
    x = tl.load(source + lane, mask=live, other=0.0).to(tl.float32)
    mean = tl.sum(x) / DIM
    centred = tl.where(live, x - mean, 0.0)
    inverse = tl.rsqrt(tl.sum(centred * centred) / DIM + eps)
    g = tl.load(weight + lane, mask=live, other=0.0)
    b = tl.load(bias + lane, mask=live, other=0.0)
    mine = cast_to(centred * inverse * g + b, DTYPE).to(tl.float32)
    turns = lane < ROPE
    partner, c, s = rope_angles(cos, sin, position, lane, turns, ROPE, INTERLEAVED)
    x = tl.load(source + partner, mask=turns, other=0.0).to(tl.float32)
    g = tl.load(weight + partner, mask=turns, other=0.0)
    b = tl.load(bias + partner, mask=turns, other=0.0)
    other = cast_to((x - mean) * inverse * g + b, DTYPE).to(tl.float32)
    rotated = cast_to(mine * c + other * s, DTYPE).to(tl.float32)
    return tl.where(turns, rotated, mine)


@triton.jit
def fused_norm_rope_kernel(
    projected,
    q_weight,
    kv_weight,
    index_weight,
    index_bias,
    cos,
    sin,
    positions,
    slots,
    q_out,
    topk,
    keys,
    key_scales,
    latent,
    latent_scales,
    rope,
    k_scale,
    eps,
    index_eps,
    row_stride,
    topk_stride,
    topk_width,
    latent_block_stride,
    latent_row_stride,
    scale_block_stride,
    scale_row_stride,
    rope_block_stride,
    rope_row_stride,
    key_block_stride,
    key_row_stride,
    key_scale_block_stride,
    Q: tl.constexpr,
    Q_WIDTH: tl.constexpr,
    LATENT: tl.constexpr,
    LATENT_WIDTH: tl.constexpr,
    ROPE: tl.constexpr,
    ROPE_WIDTH: tl.constexpr,
    DIM: tl.constexpr,
    DIM_WIDTH: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    INDEX_INTERLEAVED: tl.constexpr,
    HADAMARD: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One job of one token per program."""
    token = tl.program_id(0).to(tl.int64)
    job = tl.program_id(1)
    row = projected + token * row_stride
    if job == QUERY_JOB:
        norm_query(row, q_weight, eps, q_out + token * Q, Q, Q_WIDTH)
    elif job == RESET_JOB:
        fill_unused(topk + token * topk_stride, topk_width, BLOCK_K)
    else:
        slot = tl.load(slots + token)
        if slot < 0:
            return
        block, offset = slot // PAGE, slot % PAGE
        position = tl.load(positions + token)
        if job == LATENT_JOB:
            store_latent(
                norm_latent(row + Q, kv_weight, eps, LATENT, LATENT_WIDTH),
                tl.arange(0, LATENT_WIDTH),
                block,
                offset,
                latent,
                latent_scales,
                k_scale,
                latent_block_stride,
                latent_row_stride,
                scale_block_stride,
                scale_row_stride,
                LATENT,
                LATENT_WIDTH,
                TILE,
            )
            store_rope_key(
                rotate_key(row + Q + LATENT, cos, sin, position, ROPE, ROPE_WIDTH, INTERLEAVED),
                tl.arange(0, ROPE_WIDTH),
                block,
                offset,
                rope,
                k_scale,
                rope_block_stride,
                rope_row_stride,
                ROPE,
            )
        elif index_weight is not None:
            store_index_key(
                norm_rotate_index_key(
                    row + Q + LATENT + ROPE,
                    index_weight,
                    index_bias,
                    cos,
                    sin,
                    position,
                    index_eps,
                    ROPE,
                    DIM,
                    DIM_WIDTH,
                    INDEX_INTERLEAVED,
                ),
                tl.arange(0, DIM_WIDTH),
                block,
                offset,
                keys,
                key_scales,
                key_block_stride,
                key_row_stride,
                key_scale_block_stride,
                DIM,
                DIM_WIDTH,
                HADAMARD,
            )


def fused_norm_rope(
    projected: Tensor,
    norms: LatentNorms,
    rotary: Rotary,
    batch: ForwardBatch,
    cache: LayerCache,
    *,
    hadamard: bool,
) -> Tensor:
    """projected `[T, ≥ Q + C + R (+ dI)]` → normed query latent `[T, Q]`; writes both caches.

    Where the layer ranks keys in this step (it has an indexer and a row sees more keys than
    `batch.topk_indices` has columns), those rows become −1. A negative slot writes no key.

    Memory-bound. Per token it reads Q + C + R (+ dI) elements once (the R of each rotary part twice, then
    from cache) and the norms' weights from cache, and writes Q elements, a cache row (656 bytes of
    fp8_ds_mla), an index key (132 bytes in fp8) and 4 bytes per top-k column, each of them once.
    Raises ValueError.
    """
    _check_constants(norms, rotary)
    indexer = norms.index_weight is not None
    dim = 0 if norms.index_weight is None else norms.index_weight.shape[0]
    q_rank, latent, rope = norms.q.shape[0], norms.kv.shape[0], 2 * rotary.cos.shape[1]
    check_tensor(OP, "projected", projected, dtype=FLOATS, shape=(None, None), contiguous=False)
    tokens = projected.shape[0]
    if projected.shape[1] < q_rank + latent + rope + dim:
        raise ValueError(
            f"{OP}: projected has {projected.shape[1]} columns, allowed are at least {q_rank} + {latent} + "
            f"{rope} + {dim}"
        )
    check_tensor(OP, "positions", batch.positions, dtype=torch.int64, shape=(tokens,))
    check_tensor(OP, "slot_mapping", batch.slot_mapping, dtype=torch.int64, shape=(tokens,))
    topk = batch.topk_indices
    check_tensor(OP, "topk_indices", topk, dtype=torch.int32, shape=(None, None), contiguous=False)
    check_hadamard(OP, dim, hadamard and indexer)
    reset = indexer and batch.max_length > topk.shape[1]
    if reset and topk.shape[0] < tokens:
        raise ValueError(f"{OP}: topk_indices has {topk.shape[0]} rows, allowed are at least {tokens}")
    q_out = projected.new_empty(tokens, q_rank)
    own_strides = (projected.stride(0), topk.stride(0), topk.shape[1])
    main = cache_arguments(OP, cache, latent=latent, rope=rope, strides=own_strides)
    key = key_arguments(OP, cache, dim=dim, strides=()) if indexer else (None, None, 0, 0, 0)
    launch(
        fused_norm_rope_kernel,
        (tokens, 2 + indexer + reset),
        projected,
        norms.q,
        norms.kv,
        norms.index_weight,
        norms.index_bias,
        rotary.cos,
        rotary.sin,
        batch.positions,
        batch.slot_mapping,
        q_out,
        topk,
        *key[:2],
        *main[:4],
        norms.eps,
        LAYER_NORM_EPS,
        *main[4:],
        *key[2:],
        config=TILES,
        Q=q_rank,
        Q_WIDTH=triton.next_power_of_2(q_rank),
        LATENT=latent,
        LATENT_WIDTH=triton.next_power_of_2(latent),
        ROPE=rope,
        ROPE_WIDTH=triton.next_power_of_2(rope),
        DIM=dim,
        DIM_WIDTH=triton.next_power_of_2(max(dim, 1)),
        INTERLEAVED=rotary.interleaved,
        INDEX_INTERLEAVED=rotary.index_interleaved,
        HADAMARD=hadamard,
        PAGE=PAGE_SIZE,
        TILE=DS_MLA_TILE,
    )
    return q_out


def _check_constants(norms: LatentNorms, rotary: Rotary) -> None:
    """Raises ValueError."""
    check_tensor(OP, "norms.q", norms.q, dtype=torch.float32, shape=(None,))
    check_tensor(OP, "norms.kv", norms.kv, dtype=torch.float32, shape=(None,))
    weight, bias, dim = norms.index_weight, norms.index_bias, 0
    if (weight is None) != (bias is None):
        missing = "index_weight" if weight is None else "index_bias"
        raise ValueError(
            f"{OP}: norms.{missing} is None, allowed is None for both index norms or for neither"
        )
    if weight is not None and bias is not None:
        check_tensor(OP, "norms.index_weight", weight, dtype=torch.float32, shape=(None,))
        dim = weight.shape[0]
        check_tensor(OP, "norms.index_bias", bias, dtype=torch.float32, shape=(dim,))
    check_tensor(OP, "rotary.cos", rotary.cos, dtype=torch.float32, shape=(None, None), contiguous=True)
    check_tensor(OP, "rotary.sin", rotary.sin, dtype=torch.float32, shape=rotary.cos.shape, contiguous=True)
    if dim and dim < 2 * rotary.cos.shape[1]:
        raise ValueError(f"{OP}: the index key has {dim} values, allowed are at least the rotary ones")


def compile_specs() -> list[CompileSpec]:
    """Both models in all pairs of cache dtypes, with and without indexer; and all that the checks run."""
    from paths.dsa_mrv2.kernels.fused_norm_rope.cases import Shape, check_cases, make_call

    specs = []
    for model, q_rank, interleaved in (("v32", 1536, False), ("glm52", 2048, True)):
        for kv_dtype, index_dtype in (
            ("bf16", "bf16"),
            ("bf16", "fp8"),
            ("fp8", "fp8"),
            ("fp8_ds_mla", "fp8"),
            ("float32", "float32"),
            ("bf16", None),
            ("fp8_ds_mla", None),
        ):
            shape = Shape(
                q_rank=q_rank,
                kv_dtype=kv_dtype,
                index_dtype=index_dtype,
                index_interleaved=interleaved,
                hadamard=index_dtype == "fp8",
                source="float32" if kv_dtype == "float32" else "bf16",
            )
            call = make_call(torch.Generator().manual_seed(0), META, rows=64, shape=shape)
            label = f"{model}, {kv_dtype}, index {index_dtype}"
            specs += traced(OP, label, partial(fused_norm_rope, *call.args, **call.kwargs))
    return specs + of_cases(OP, fused_norm_rope, check_cases())
