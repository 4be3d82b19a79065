"""index_k_write in Triton."""

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
from paths.kernels.layouts import index_views
from paths.kernels.rotation import hadamard_rows
from paths.kernels.tensors import check_tensor

OP = "index_k_write"
TILES = TileConfig(num_warps=1, num_stages=1)  # 128 values a row
FLOATS = (torch.float32, torch.bfloat16)
ELEMENT = {"float32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.uint8}


@triton.jit
def store_index_key(
    values,
    lane,
    block,
    offset,
    keys,
    scales,
    key_block_stride,
    key_row_stride,
    scale_block_stride,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    HADAMARD: tl.constexpr,
):
    """values float32 `[WIDTH]`, zero from DIM on, as the key of (block, offset); both are int64."""
    if HADAMARD:
        values = tl.reshape(hadamard_rows(tl.reshape(values, (1, WIDTH)), 1, WIDTH), (WIDTH,))
    out = keys + block * key_block_stride + offset * key_row_stride + lane
    if scales is not None:
        scale = ue8m0_scale(block_amax(values, 0))
        tl.store(out, to_e4m3(values * reciprocal(scale)), mask=lane < DIM)
        tl.store(scales + block * scale_block_stride + offset, scale)
    else:
        tl.store(out, cast_to(values, keys.dtype.element_ty), mask=lane < DIM)


@triton.jit
def index_k_write_kernel(
    k,
    slots,
    keys,
    scales,
    k_stride,
    key_block_stride,
    key_row_stride,
    scale_block_stride,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    HADAMARD: tl.constexpr,
):
    """One token per program."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    if slot < 0:
        return
    lane = tl.arange(0, WIDTH)
    values = tl.load(k + token * k_stride + lane, mask=lane < DIM, other=0.0).to(tl.float32)
    store_index_key(
        values,
        lane,
        slot // PAGE,
        slot % PAGE,
        keys,
        scales,
        key_block_stride,
        key_row_stride,
        scale_block_stride,
        DIM,
        WIDTH,
        HADAMARD,
    )


def index_k_write(k: Tensor, slot_mapping: Tensor, cache: LayerCache, *, hadamard: bool) -> None:
    """k `[T, dI]` float32 or bf16, slot_mapping int64 `[T]`; a negative slot writes nothing.

    Memory-bound. It reads dI × element size + 8 bytes and writes one key (dI + 4 bytes in fp8) per token,
    each of them once. Raises ValueError.
    """
    check_tensor(OP, "k", k, dtype=FLOATS, shape=(None, None))
    tokens, dim = k.shape
    check_tensor(OP, "slot_mapping", slot_mapping, dtype=torch.int64, shape=(tokens,))
    check_hadamard(OP, dim, hadamard)
    launch(
        index_k_write_kernel,
        (tokens,),
        k,
        slot_mapping,
        *key_arguments(OP, cache, dim=dim, strides=(k.stride(0),)),
        config=TILES,
        DIM=dim,
        WIDTH=triton.next_power_of_2(dim),
        PAGE=PAGE_SIZE,
        HADAMARD=hadamard,
    )


def key_arguments(
    op: str, cache: LayerCache, *, dim: int, strides: tuple[int, ...]
) -> tuple[Tensor | int | None, ...]:
    """Pointers to keys and scales (fp8 only), `strides` of the caller, then the cache's, in elements.

    Raises ValueError where `cache` does not fit dI.
    """
    keys, scales = key_views(op, cache, dim=dim)
    scale_stride = 0 if scales is None else scales.stride(0)
    return (keys, scales, *strides, *keys.stride()[:2], scale_stride)


def key_views(op: str, cache: LayerCache, *, dim: int) -> tuple[Tensor, Tensor | None]:
    """Keys `[B, page, dI]` and, in fp8, scales float32 `[B, page]`. Raises ValueError."""
    if cache.index is None:
        raise ValueError(f"{op}: cache.index is None, allowed is the cache of a layer with an indexer")
    if cache.index_dtype not in ELEMENT:
        raise ValueError(
            f"{op}: cache.index_dtype is {cache.index_dtype!r}, allowed are {', '.join(ELEMENT)}"
        )
    packed = cache.index_dtype == "fp8"
    shape = (None, PAGE_SIZE * (dim + 4)) if packed else (None, PAGE_SIZE, dim)
    check_tensor(op, "cache.index", cache.index, dtype=ELEMENT[cache.index_dtype], shape=shape)
    return index_views(cache.index) if packed else (cache.index, None)


def check_hadamard(op: str, dim: int, hadamard: bool) -> None:
    """Raises ValueError."""
    if hadamard and dim & (dim - 1):
        raise ValueError(f"{op}: hadamard with {dim} values, allowed is a power of two: switch hadamard off")


def compile_specs() -> list[CompileSpec]:
    """Both models: dI 128 from bf16 in every index dtype; and everything that the checks run."""
    from paths.kernels.index_k_write.cases import check_cases
    from paths.kernels.mla_cache_write.cases import cache_of

    specs = []
    for index_dtype in ELEMENT:
        for hadamard in (False, True):
            cache = cache_of("bf16", blocks=8, device=META, index_dtype=index_dtype, index_dim=128)
            k = torch.empty(64, 192, dtype=torch.bfloat16, device=META)[:, :128]
            slots = torch.empty(64, dtype=torch.int64, device=META)
            specs += traced(
                OP,
                f"v32 and glm52, {index_dtype}{', hadamard' if hadamard else ''}",
                partial(index_k_write, k, slots, cache, hadamard=hadamard),
            )
    return specs + of_cases(OP, index_k_write, check_cases())
