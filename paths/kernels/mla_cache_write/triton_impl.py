"""mla_cache_write in Triton."""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from paths.engine.batch import PAGE_SIZE, LayerCache
from paths.kernels.casting import block_amax, cast_to, reciprocal, to_e4m3, ue8m0_scale
from paths.kernels.compile_specs import META, CompileSpec, of_cases, traced
from paths.kernels.launching import TileConfig, launch
from paths.kernels.layouts import DS_MLA_TILE, E4M3, ds_mla_views
from paths.kernels.tensors import check_tensor

OP = "mla_cache_write"
TILES = TileConfig(num_warps=2, num_stages=1)  # 576 values a row: 9 a thread
FLOATS = (torch.float32, torch.bfloat16)
ELEMENT = {"float32": torch.float32, "bf16": torch.bfloat16, "fp8": E4M3, "fp8_ds_mla": torch.uint8}


@triton.jit
def store_latent(
    values,
    lane,
    block,
    offset,
    latent,
    scales,
    k_scale,
    latent_block_stride,
    latent_row_stride,
    scale_block_stride,
    scale_row_stride,
    LATENT: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
):
    """values float32 `[WIDTH]`, zero from LATENT on, into the row of (block, offset); both are int64."""
    out = latent + block * latent_block_stride + offset * latent_row_stride + lane
    live = lane < LATENT
    if scales is not None:
        tiles = tl.reshape(values, (WIDTH // TILE, TILE))
        scale = ue8m0_scale(block_amax(tiles, 1))
        quantized = tl.reshape(to_e4m3(tiles * reciprocal(scale)[:, None]), (WIDTH,))
        tl.store(out, quantized, mask=live)
        tile = tl.arange(0, WIDTH // TILE)
        row = scales + block * scale_block_stride + offset * scale_row_stride
        tl.store(row + tile, scale, mask=tile < LATENT // TILE)
    elif latent.dtype.element_ty == tl.float8e4nv:
        tl.store(out, to_e4m3(tl.div_rn(values, tl.load(k_scale))), mask=live)
    else:
        tl.store(out, cast_to(values, latent.dtype.element_ty), mask=live)


@triton.jit
def store_rope_key(values, lane, block, offset, rope, k_scale, block_stride, row_stride, ROPE: tl.constexpr):
    """values float32 `[≥ ROPE]` into the row of (block, offset); scaled where the cache is plain fp8."""
    out = rope + block * block_stride + offset * row_stride + lane
    if rope.dtype.element_ty == tl.float8e4nv:
        values = tl.div_rn(values, tl.load(k_scale))
    tl.store(out, cast_to(values, rope.dtype.element_ty), mask=lane < ROPE)


@triton.jit
def mla_cache_write_kernel(
    c,
    k_pe,
    slots,
    latent,
    scales,
    rope,
    k_scale,
    c_stride,
    k_pe_stride,
    latent_block_stride,
    latent_row_stride,
    scale_block_stride,
    scale_row_stride,
    rope_block_stride,
    rope_row_stride,
    LATENT: tl.constexpr,
    LATENT_WIDTH: tl.constexpr,
    ROPE: tl.constexpr,
    ROPE_WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
):
    """One token per program."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    if slot < 0:
        return
    block, offset = slot // PAGE, slot % PAGE
    lane = tl.arange(0, LATENT_WIDTH)
    values = tl.load(c + token * c_stride + lane, mask=lane < LATENT, other=0.0).to(tl.float32)
    store_latent(
        values,
        lane,
        block,
        offset,
        latent,
        scales,
        k_scale,
        latent_block_stride,
        latent_row_stride,
        scale_block_stride,
        scale_row_stride,
        LATENT,
        LATENT_WIDTH,
        TILE,
    )
    turned = tl.arange(0, ROPE_WIDTH)
    key = tl.load(k_pe + token * k_pe_stride + turned, mask=turned < ROPE, other=0.0).to(tl.float32)
    store_rope_key(key, turned, block, offset, rope, k_scale, rope_block_stride, rope_row_stride, ROPE)


def mla_cache_write(c: Tensor, k_pe: Tensor, slot_mapping: Tensor, cache: LayerCache) -> None:
    """c `[T, C]`, k_pe `[T, R]` float32 or bf16, slot_mapping int64 `[T]`; a negative slot writes nothing.

    Memory-bound. It reads (C + R) × element size + 8 bytes and writes one cache row (656 bytes of fp8_ds_mla)
    per token, each of them once. Raises ValueError.
    """
    check_tensor(OP, "c", c, dtype=FLOATS, shape=(None, None))
    tokens = c.shape[0]
    check_tensor(OP, "k_pe", k_pe, dtype=c.dtype, shape=(tokens, None))
    check_tensor(OP, "slot_mapping", slot_mapping, dtype=torch.int64, shape=(tokens,))
    latent, rope = c.shape[1], k_pe.shape[1]
    launch(
        mla_cache_write_kernel,
        (tokens,),
        c,
        k_pe,
        slot_mapping,
        *cache_arguments(OP, cache, latent=latent, rope=rope, strides=(c.stride(0), k_pe.stride(0))),
        config=TILES,
        LATENT=latent,
        LATENT_WIDTH=triton.next_power_of_2(latent),
        ROPE=rope,
        ROPE_WIDTH=triton.next_power_of_2(rope),
        PAGE=PAGE_SIZE,
        TILE=DS_MLA_TILE,
    )


def cache_arguments(
    op: str, cache: LayerCache, *, latent: int, rope: int, strides: tuple[int, ...]
) -> tuple[Tensor | int | None, ...]:
    """Pointers of a main cache, `strides` of the caller, then the cache's strides, all in elements.

    A row's latent, scale and rope parts are views of their own dtype. Raises ValueError where `cache` does
    not fit C and R.
    """
    latent_view, scale_view, rope_view = cache_views(op, cache, latent=latent, rope=rope)
    scale_strides = (0, 0) if scale_view is None else scale_view.stride()[:2]
    return (
        latent_view,
        scale_view,
        rope_view,
        cache.k_scale,
        *strides,
        *latent_view.stride()[:2],
        *scale_strides,
        *rope_view.stride()[:2],
    )


def cache_views(
    op: str, cache: LayerCache, *, latent: int, rope: int
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Latent, scales (fp8_ds_mla only) and rope parts of a main cache. Raises ValueError."""
    if cache.kv_dtype not in ELEMENT:
        raise ValueError(f"{op}: cache.kv_dtype is {cache.kv_dtype!r}, allowed are {', '.join(ELEMENT)}")
    packed = cache.kv_dtype == "fp8_ds_mla"
    if packed and latent % DS_MLA_TILE:
        raise ValueError(
            f"{op}: the latent has {latent} values, fp8_ds_mla allows multiples of {DS_MLA_TILE}"
        )
    width = latent + 4 * (latent // DS_MLA_TILE) + 2 * rope if packed else latent + rope
    check_tensor(op, "cache.kv", cache.kv, dtype=ELEMENT[cache.kv_dtype], shape=(None, PAGE_SIZE, width))
    check_tensor(op, "cache.k_scale", cache.k_scale, dtype=torch.float32, shape=())
    if packed:
        return ds_mla_views(cache.kv, rope)
    return cache.kv[..., :latent], None, cache.kv[..., latent:]


def compile_specs() -> list[CompileSpec]:
    """Both models store C 512 and R 64 in every cache dtype; and all that the checks run."""
    from paths.kernels.mla_cache_write.cases import cache_of, check_cases

    specs = []
    for kv_dtype in ELEMENT:
        cache = cache_of(kv_dtype, blocks=8, device=META)
        rows = torch.empty(64, 2112, dtype=torch.bfloat16, device=META)
        slots = torch.empty(64, dtype=torch.int64, device=META)
        specs += traced(
            OP,
            f"v32 and glm52, {kv_dtype}",
            partial(mla_cache_write, rows[:, 1536:2048], rows[:, 2048:], slots, cache),
        )
    return specs + of_cases(OP, mla_cache_write, check_cases())
