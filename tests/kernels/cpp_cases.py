"""Inputs for kernel tests: paged caches full of NaN, shuffled block tables, odd sizes."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from paths.engine.batch import PAGE_SIZE, ForwardBatch, LayerCache
from paths.kernels.cpp import NATIVE, PORTABLE, CppKernels, load

VARIANTS = {"native": NATIVE, "portable": PORTABLE}
SIZES = (0, 1, 63, 100, 111)
KV_DTYPES = ("float32", "bf16", "fp8", "fp8_ds_mla")
INDEX_DTYPES = ("float32", "bf16", "fp8")
DTYPES = (torch.float32, torch.bfloat16)


@functools.cache
def cpp_kernels(variant: str) -> CppKernels:
    return load(VARIANTS[variant])


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape, generator=generator(seed)) * scale).to(dtype)


def strided(x: Tensor) -> Tensor:
    """The same values as a slice of wider rows full of NaN, as a fused projection hands them on."""
    wide = torch.full((*x.shape[:-1], x.shape[-1] + 9), torch.nan, dtype=x.dtype)
    wide[..., 5 : 5 + x.shape[-1]] = x
    return wide[..., 5 : 5 + x.shape[-1]]


def close(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Equal up to summation order in float32, up to one rounding in bfloat16; NaN only where expected."""
    tolerance = 2e-5 if dtype is torch.float32 else 1.6e-2
    torch.testing.assert_close(
        actual.float(), expected.float(), rtol=tolerance, atol=tolerance, equal_nan=True
    )


def near(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """Relative RMS error, for values that passed through several roundings."""
    assert actual.isfinite().all()
    if expected.numel():
        error = (actual.float() - expected.float()).square().mean().sqrt()
        limit = 1e-5 if dtype is torch.float32 else 8e-3
        assert error <= limit * expected.float().square().mean().sqrt(), float(error)


def empty_cache(
    *,
    blocks: int,
    latent: int,
    rope: int,
    index_dim: int,
    kv_dtype: str,
    index_dtype: str,
    k_scale: float = 1.0,
) -> LayerCache:
    """Every byte 0xFF: NaN in every dtype."""
    width = latent + rope
    row_bytes = {
        "float32": 4 * width,
        "bf16": 2 * width,
        "fp8": width,
        "fp8_ds_mla": latent + latent // 32 + 2 * rope,
    }[kv_dtype]
    kv = torch.full((blocks, PAGE_SIZE, row_bytes), 0xFF, dtype=torch.uint8)
    index_bytes = {"float32": 4 * index_dim, "bf16": 2 * index_dim, "fp8": index_dim + 4}[index_dtype]
    index = torch.full((blocks, PAGE_SIZE * index_bytes), 0xFF, dtype=torch.uint8)
    if index_dtype != "fp8":
        element = torch.float32 if index_dtype == "float32" else torch.bfloat16
        index = index.view(element).view(blocks, PAGE_SIZE, index_dim)
    views = {"float32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}
    return LayerCache(
        kv=kv.view(views[kv_dtype]) if kv_dtype in views else kv,
        kv_dtype=kv_dtype,
        k_scale=torch.tensor(k_scale),
        index=index,
        index_dtype=index_dtype,
    )


def same_bytes(a: LayerCache, b: LayerCache) -> bool:
    pairs = ((a.kv, b.kv), (a.index, b.index))
    return all(torch.equal(x.view(torch.uint8), y.view(torch.uint8)) for x, y in pairs)


def paged_batch(
    rows: list[tuple[int, int]], *, requests: int, k: int, max_len: int, seed: int = 0
) -> ForwardBatch:
    """Rows (request, keys seen) over a shuffled block table; block 0 belongs to nobody."""
    pages = -(-max_len // PAGE_SIZE)
    order = torch.randperm(requests * pages, generator=generator(seed)) + 1
    table = order.int().view(requests, pages)
    req = torch.tensor([r for r, _ in rows], dtype=torch.int32)
    lengths = torch.tensor([n for _, n in rows], dtype=torch.int32)
    positions = (lengths - 1).clamp(min=0).long()
    slots = table[req.long(), positions // PAGE_SIZE].long() * PAGE_SIZE + positions % PAGE_SIZE
    return ForwardBatch(
        input_ids=torch.zeros(len(rows), dtype=torch.int64),
        positions=positions,
        slot_mapping=torch.where(lengths > 0, slots, -1),
        req_rows=req,
        lengths=lengths,
        block_table=table,
        topk_indices=torch.full((len(rows), k), -7, dtype=torch.int32),
        max_length=max([n for _, n in rows], default=0),
    )


def key_slots(batch: ForwardBatch, request: int, count: int) -> Tensor:
    """Slots of a request's first `count` keys, int64."""
    positions = torch.arange(count)
    blocks = batch.block_table[request, positions // PAGE_SIZE].long()
    return blocks * PAGE_SIZE + positions % PAGE_SIZE
