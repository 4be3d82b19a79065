"""C++ cache writers: the same bytes as the definition, and no byte beside them."""

from __future__ import annotations

import pytest
import torch

from paths.kernels.index_k_write.reference import index_k_write
from paths.kernels.index_q_prepare.reference import index_q_prepare
from paths.kernels.mla_cache_write.reference import mla_cache_write
from tests.kernels.cpp_cases import (
    DTYPES,
    INDEX_DTYPES,
    KV_DTYPES,
    SIZES,
    VARIANTS,
    close,
    cpp_kernels,
    empty_cache,
    random,
    same_bytes,
    strided,
)

SIZES_OF = {"latent": 128, "rope": 16, "index_dim": 32}


@pytest.fixture(params=VARIANTS)
def cpp(request):
    return cpp_kernels(request.param)


def slots(rows: int) -> torch.Tensor:
    """Scattered over pages, with the rows 3, 10, 17, … left out."""
    chosen = torch.randperm(4 * 64, generator=torch.Generator().manual_seed(5))[:rows]
    chosen[3::7] = -1
    return chosen


def wide_values(rows: int, width: int, dtype: torch.dtype) -> torch.Tensor:
    """From subnormal to saturating, with zeros, infinities left out."""
    x = random(rows, width) * 10.0 ** torch.randint(
        -6, 4, (rows, 1), generator=torch.Generator().manual_seed(1)
    )
    x[::5] = 0.0
    return x.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_mla_cache_write(cpp, kv_dtype, rows, dtype):
    mine, expected = (
        empty_cache(blocks=4, kv_dtype=kv_dtype, index_dtype="bf16", k_scale=0.7, **SIZES_OF)
        for _ in range(2)
    )
    c, k_pe, to = wide_values(rows, 128, dtype), random(rows, 16, seed=3, dtype=dtype), slots(rows)
    cpp.mla_cache_write(strided(c), strided(k_pe), to, mine)
    mla_cache_write(c, k_pe, to, expected)
    assert same_bytes(mine, expected)


def test_fp8_rounds_every_value_as_torch_does(cpp):
    """All bfloat16 bit patterns, and halves between neighbouring e4m3 values."""
    every = torch.arange(65536).to(torch.int32).to(torch.uint16).view(torch.bfloat16)
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    halves = torch.cat([(codes[1:] + codes[:-1]) / 2, codes])
    halves = torch.cat([halves, halves.nextafter(torch.tensor(0.0)), halves.nextafter(torch.tensor(999.0))])
    values = torch.cat([every.float(), halves, -halves])
    values = torch.nn.functional.pad(values, (0, -values.numel() % 64)).view(-1, 64)
    mine, expected = (
        empty_cache(blocks=20, kv_dtype="fp8", index_dtype="bf16", latent=48, rope=16, index_dim=32)
        for _ in range(2)
    )
    to = torch.arange(len(values))
    cpp.mla_cache_write(values[:, :48], values[:, 48:], to, mine)
    mla_cache_write(values[:, :48], values[:, 48:], to, expected)
    a, b = mine.kv.view(torch.uint8), expected.kv.view(torch.uint8)
    nan = expected.kv.float().isnan()
    assert torch.equal(a[~nan], b[~nan])
    assert mine.kv.float()[nan].isnan().all()


@pytest.mark.parametrize("slot", [0, 63, 64, 65, 127, 128])
def test_page_boundaries(cpp, slot):
    mine, expected = (
        empty_cache(blocks=3, kv_dtype="fp8_ds_mla", index_dtype="fp8", **SIZES_OF) for _ in range(2)
    )
    c, k_pe, k, to = random(1, 128), random(1, 16, seed=1), random(1, 32, seed=2), torch.tensor([slot])
    cpp.mla_cache_write(c, k_pe, to, mine)
    cpp.index_k_write(k, to, mine, hadamard=False)
    mla_cache_write(c, k_pe, to, expected)
    index_k_write(k, to, expected, hadamard=False)
    assert same_bytes(mine, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
def test_index_k_write(cpp, index_dtype, rows, dtype):
    mine, expected = (
        empty_cache(blocks=4, kv_dtype="bf16", index_dtype=index_dtype, **SIZES_OF) for _ in range(2)
    )
    k, to = wide_values(rows, 32, dtype), slots(rows)
    cpp.index_k_write(strided(k), to, mine, hadamard=False)
    index_k_write(k, to, expected, hadamard=False)
    assert same_bytes(mine, expected)


def test_index_k_write_with_hadamard(cpp):
    mine, expected = (
        empty_cache(blocks=4, kv_dtype="bf16", index_dtype="float32", **SIZES_OF) for _ in range(2)
    )
    k, to = random(100, 32), torch.arange(100)
    cpp.index_k_write(k, to, mine, hadamard=True)
    index_k_write(k, to, expected, hadamard=True)
    rows = (slice(0, 1), slice(0, 64))
    close(mine.index[rows], expected.index[rows], torch.float32)
    assert not torch.allclose(mine.index[0, 0], k[0])


@pytest.mark.parametrize(
    ("amax", "exponent"),
    [(0.0, -22), (1e-4, -22), (1.0, -8), (3.5, -7), (7.0, -6), (7.0000005, -5), (448.0, 0), (449.0, 1)],
)
def test_scale_of_known_maxima(cpp, amax, exponent):
    cache = empty_cache(blocks=1, kv_dtype="bf16", index_dtype="fp8", **SIZES_OF)
    k = torch.zeros(1, 32)
    k[0, 5] = -amax
    cpp.index_k_write(k, torch.tensor([9]), cache, hadamard=False)
    scales = cache.index[0, 64 * 32 :].view(torch.float32)
    assert scales[9].item() == 2.0**exponent
    assert scales[:9].isnan().all()


@pytest.mark.parametrize("hadamard", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
def test_index_q_prepare(cpp, index_dtype, rows, dtype, hadamard):
    values = random(rows, 6 * 32, dtype=dtype) if hadamard else wide_values(rows, 6 * 32, dtype)
    q, w = values.view(rows, 6, 32), random(rows, 6, seed=2, dtype=dtype)
    mine, weights = cpp.index_q_prepare(q, strided(w), index_dtype=index_dtype, hadamard=hadamard)
    expected, expected_weights = index_q_prepare(q, w, index_dtype=index_dtype, hadamard=hadamard)
    assert mine.dtype is expected.dtype
    if hadamard:  # the butterfly and the matrix differ in the last float32 bit, which may turn a rounding
        same = (mine.view(torch.uint8) == expected.view(torch.uint8)).float()
        if index_dtype == "float32":
            close(mine, expected, torch.float32)
        else:
            assert same.numel() == 0 or same.mean() > 0.99
    else:
        assert torch.equal(mine.view(torch.uint8), expected.view(torch.uint8))
    close(weights, expected_weights, torch.float32)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("kv_dtype", ["fp8", "fp8_ds_mla"])
def test_a_value_that_is_not_finite_is_stored_like_the_definition_stores_it(cpp, kv_dtype, poison):
    mine, expected = (
        empty_cache(blocks=4, kv_dtype=kv_dtype, index_dtype="fp8", k_scale=0.7, **SIZES_OF) for _ in range(2)
    )
    c, k_pe, k = random(5, 128), random(5, 16, seed=3), random(5, 32, seed=4)
    c[1, 7] = k[2, 9] = poison
    to = torch.arange(5)
    cpp.mla_cache_write(c, k_pe, to, mine)
    mla_cache_write(c, k_pe, to, expected)
    cpp.index_k_write(k, to, mine, hadamard=False)
    index_k_write(k, to, expected, hadamard=False)
    assert same_bytes(mine, expected)
