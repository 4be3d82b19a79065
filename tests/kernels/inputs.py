"""Batches and caches for kernel tests: shuffled blocks, memory full of NaN, odd sizes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from paths.engine.batch import PAGE_SIZE, ForwardBatch, LayerCache
from paths.kernels.layouts import E4M3
from paths.kernels.registry import Kernels

CPU = torch.device("cpu")
ODD_SIZES = (0, 1, 63, 100, 111)
IMPLEMENTATIONS = ("torch", "cpp")
LATENT, ROPE, INDEX_DIM, INDEX_HEADS = 512, 64, 128, 16
CACHE_DTYPES = [("float32", "float32"), ("bf16", "bf16"), ("fp8", "fp8"), ("fp8_ds_mla", "fp8")]

_kernels: dict[str, Kernels] = {}


def kernels(name: str) -> Kernels:
    """Kernels of one implementation; the test is skipped where C++ cannot be built."""
    if name not in _kernels:
        if name == "cpp":
            from paths.kernels.cpp import CppUnavailable, load

            try:
                load()
            except CppUnavailable as error:
                pytest.skip(f"no C++ kernels here: {error}")
        _kernels[name] = Kernels(CPU, name)
    return _kernels[name]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=generator(seed)).to(dtype)


def poisoned_cache(
    num_blocks: int,
    kv_dtype: str = "float32",
    index_dtype: str = "float32",
    *,
    latent: int = LATENT,
    rope: int = ROPE,
    index_dim: int = INDEX_DIM,
    k_scale: float = 1.0,
) -> LayerCache:
    """One layer's caches in which every byte is 0xFF."""
    width = latent + 4 * (latent // 128) + 2 * rope if kv_dtype == "fp8_ds_mla" else latent + rope
    element = {"float32": torch.float32, "bf16": torch.bfloat16, "fp8": E4M3, "fp8_ds_mla": torch.uint8}
    kv = torch.zeros(num_blocks, PAGE_SIZE, width, dtype=element[kv_dtype])
    if index_dtype == "fp8":
        index = torch.zeros(num_blocks, PAGE_SIZE * (index_dim + 4), dtype=torch.uint8)
    else:
        index = torch.zeros(num_blocks, PAGE_SIZE, index_dim, dtype=element[index_dtype])
    for tensor in (kv, index):
        tensor.view(torch.uint8).fill_(0xFF)
    return LayerCache(
        kv=kv, kv_dtype=kv_dtype, k_scale=torch.tensor(k_scale), index=index, index_dtype=index_dtype
    )


def make_batch(
    spans: Sequence[tuple[int, int]], *, k: int, padding: int = 0, seed: int = 0
) -> tuple[ForwardBatch, int]:
    """A batch of requests (positions start..end of each) and the number of blocks its caches need.

    Blocks are dealt out in random order, block 0 to nobody; entries behind a last page are nonsense.
    """
    pages = [-(-end // PAGE_SIZE) for _, end in spans]
    order = torch.randperm(sum(pages), generator=generator(seed)) + 1
    table = torch.full((max(len(spans), 1), max([*pages, 1]) + 1), 2**30, dtype=torch.int32)
    taken = 0
    for row, count in enumerate(pages):
        table[row, :count] = order[taken : taken + count]
        taken += count
    positions = torch.cat([torch.arange(a, b) for a, b in spans] or [torch.zeros(0, dtype=torch.int64)])
    rows = torch.cat([torch.full((b - a,), r) for r, (a, b) in enumerate(spans)] or [positions]).int()
    slots = table[rows.long(), positions // PAGE_SIZE].long() * PAGE_SIZE + positions % PAGE_SIZE
    lengths = (positions + 1).int()
    pad = lambda t, fill: torch.cat([t, t.new_full((padding,), fill)])  # noqa: E731
    batch = ForwardBatch(
        input_ids=pad(positions, 0),
        positions=pad(positions, 0),
        slot_mapping=pad(slots, -1),
        req_rows=pad(rows, 0),
        lengths=pad(lengths, 0),
        block_table=table,
        topk_indices=torch.full((len(positions) + padding, k), -7, dtype=torch.int32),
        max_length=int(lengths.max()) if len(lengths) else 0,
    )
    return batch, sum(pages) + 1


def whole_slots(batch: ForwardBatch, row: int, length: int) -> torch.Tensor:
    """Slots of positions 0..length of one request."""
    positions = torch.arange(length)
    return batch.block_table[row, positions // PAGE_SIZE].long() * PAGE_SIZE + positions % PAGE_SIZE


def assert_close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    """Same NaNs first, then the largest difference relative to the largest value."""
    assert actual.shape == expected.shape and actual.dtype == expected.dtype
    a, e = actual.float(), expected.float()
    assert torch.equal(a.isnan(), e.isnan()), "NaN in different places"
    assert torch.equal(a.isinf(), e.isinf()), "infinities in different places"
    finite = e.isfinite()
    if finite.any():
        worst = (a - e)[finite].abs().max().item()
        assert worst <= tolerance * max(1.0, e[finite].abs().max().item()), f"largest difference {worst}"
