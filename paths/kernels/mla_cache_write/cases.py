"""Check cases of mla_cache_write: odd row counts, shuffled slots over full pages, rows cut from wider."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from paths.engine.batch import PAGE_SIZE, LayerCache
from paths.kernels.cases import Call, Case, exact, randn, rows_far_apart
from paths.kernels.layouts import E4M3

LATENT, ROPE = 512, 64
ROWS = (0, 1, 63, 64, 65, 100, 111)
ADJACENT = {"torch": "it flattens the blocks, which must stand together"}
KV_DTYPES = ("float32", "bf16", "fp8", "fp8_ds_mla")
SOURCES = {"float32": torch.float32, "bf16": torch.bfloat16}


def cache_of(
    kv_dtype: str,
    *,
    blocks: int,
    device: torch.device,
    latent: int = LATENT,
    rope: int = ROPE,
    k_scale: float = 1.0,
    index_dtype: str = "float32",
    index_dim: int | None = None,
) -> LayerCache:
    """One layer's caches in which every byte is 0xFF, NaN in every format."""
    packed = latent + 4 * (latent // 128) + 2 * rope
    width = packed if kv_dtype == "fp8_ds_mla" else latent + rope
    element = {"float32": torch.float32, "bf16": torch.bfloat16, "fp8": E4M3, "fp8_ds_mla": torch.uint8}
    index = None
    if index_dim is not None and index_dtype == "fp8":
        index = poisoned(blocks, PAGE_SIZE * (index_dim + 4), dtype=torch.uint8, device=device)
    elif index_dim is not None:
        index = poisoned(blocks, PAGE_SIZE, index_dim, dtype=element[index_dtype], device=device)
    return LayerCache(
        kv=poisoned(blocks, PAGE_SIZE, width, dtype=element[kv_dtype], device=device),
        kv_dtype=kv_dtype,
        k_scale=torch.full((), k_scale, dtype=torch.float32, device=device),
        index=index,
        index_dtype=index_dtype,
    )


def far_apart(cache: LayerCache) -> LayerCache:
    """The same caches with blocks 2^30 elements apart: offsets in 32 bits wrap around from block 2 on."""

    def moved(tensor: Tensor) -> Tensor:
        flat = tensor.flatten(1)
        far = rows_far_apart(flat.shape[0], flat.shape[1], flat.dtype, flat.device)
        far.view(torch.uint8).copy_(flat.view(torch.uint8))
        return far.unflatten(1, tensor.shape[1:])

    return replace(cache, kv=moved(cache.kv), index=None if cache.index is None else moved(cache.index))


def poisoned(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """All bits set."""
    tensor = torch.zeros(shape, dtype=dtype, device=device)
    tensor.view(torch.uint8).fill_(0xFF)
    return tensor


def draw_slots(generator: torch.Generator, rows: int, *, blocks: int, skip: int = 3) -> Tensor:
    """Distinct slots in random order, the first and last of a page among them; every `skip`-th row has −1."""
    order = torch.randperm((blocks - 1) * PAGE_SIZE, generator=generator) + PAGE_SIZE
    edges = torch.tensor([PAGE_SIZE, 2 * PAGE_SIZE - 1, blocks * PAGE_SIZE - 1])
    slots = torch.cat([edges, order[~torch.isin(order, edges)]])[:rows].clone()
    slots[skip - 1 :: skip] = -1
    return slots


def draw_rows(
    generator: torch.Generator, rows: int, width: int, *, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """`[rows, width]` inside wider rows of NaN; magnitudes from 1e-6 to 1e4, and a row of zeros."""
    values = randn(generator, rows, width, device=device)
    values *= torch.pow(10.0, torch.rand((rows, 1), generator=generator) * 10 - 6).to(device)
    if rows > 2:
        values[2] = 0.0
    wide = torch.full((rows, width + 24), torch.nan, dtype=dtype, device=device)
    wide[:, 8 : 8 + width] = values.to(dtype)
    return wide[:, 8 : 8 + width]


def check_cases() -> list[Case]:
    cases = [
        Case(f"{kv_dtype}/{rows} rows, {source}", partial(_make, kv_dtype=kv_dtype, rows=rows, source=source))
        for kv_dtype in KV_DTYPES
        for rows in ROWS
        for source in ["bf16" if rows % 2 else "float32"]
    ]
    narrow = [
        Case(
            f"{kv_dtype}/5 rows, C 48, R 16",
            partial(_make, kv_dtype=kv_dtype, rows=5, source="float32", latent=48, rope=16),
        )
        for kv_dtype in KV_DTYPES
        if kv_dtype != "fp8_ds_mla"
    ]
    far = [
        Case(
            "fp8_ds_mla/blocks far apart",
            partial(_make, kv_dtype="fp8_ds_mla", rows=20, source="bf16", far=True),
            skip=ADJACENT,
        )
    ]
    slow = [
        Case(f"{kv_dtype}/1000 rows", partial(_make, kv_dtype=kv_dtype, rows=1000, source="bf16"), slow=True)
        for kv_dtype in KV_DTYPES
    ]
    return cases + narrow + far + slow


def _make(
    generator: torch.Generator,
    device: torch.device,
    *,
    kv_dtype: str,
    rows: int,
    source: str,
    latent: int = LATENT,
    rope: int = ROPE,
    far: bool = False,
) -> Call:
    blocks = rows // PAGE_SIZE + (4 if far else 3)
    cache = cache_of(kv_dtype, blocks=blocks, device=device, latent=latent, rope=rope, k_scale=0.37)
    if far:
        cache = far_apart(cache)
    return Call(
        args=(
            draw_rows(generator, rows, latent, dtype=SOURCES[source], device=device),
            draw_rows(generator, rows, rope, dtype=SOURCES[source], device=device),
            draw_slots(generator, rows, blocks=blocks).to(device),
            cache,
        ),
        kwargs={},
        outputs=lambda _: {"cache": cache.kv.view(torch.uint8)},
        tolerance={"cache": exact()},
    )
