"""C++ sparse MLA against the definition."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from paths.kernels.mla_cache_write.reference import mla_cache_write
from paths.kernels.sparse_mla.reference import sparse_mla
from tests.kernels.cpp_cases import (
    DTYPES,
    KV_DTYPES,
    VARIANTS,
    close,
    cpp_kernels,
    empty_cache,
    key_slots,
    paged_batch,
    random,
)


@pytest.fixture(params=VARIANTS)
def cpp(request):
    return cpp_kernels(request.param)


def case(lengths, *, k, kv_dtype="float32", latent=128, rope=16, k_scale=1.0, max_len=192, share=0.5):
    """One request per row; a share of its keys selected in random order, unselected keys stay NaN."""
    batch = paged_batch([(i, n) for i, n in enumerate(lengths)], requests=len(lengths), k=k, max_len=max_len)
    cache = empty_cache(
        blocks=1 + batch.block_table.numel(),
        latent=latent,
        rope=rope,
        index_dim=32,
        kv_dtype=kv_dtype,
        index_dtype="bf16",
        k_scale=k_scale,
    )
    batch.topk_indices.fill_(-1)
    for i, n in enumerate(lengths):
        chosen = torch.randperm(n, generator=torch.Generator().manual_seed(i))[: min(k, math.ceil(share * n))]
        batch.topk_indices[i, : len(chosen)] = chosen.int()
        slots = key_slots(batch, i, n)[chosen]
        keys = random(len(chosen), latent + rope, seed=i)
        mla_cache_write(keys[:, :latent], keys[:, latent:], slots, cache)
    return batch, cache


LENGTHS = (0, 1, 2, 63, 64, 65, 100, 111, 190)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("heads", [1, 3, 8])
def test_against_the_definition(cpp, kv_dtype, heads, dtype):
    batch, cache = case(LENGTHS, k=100, kv_dtype=kv_dtype, k_scale=0.5)
    q = random(len(LENGTHS), heads, 144, seed=7, dtype=dtype)
    out, lse = cpp.sparse_mla(q, cache, batch, 100, latent=128, scale=0.1)
    expected, expected_lse = sparse_mla(q, cache, batch, 100, latent=128, scale=0.1)
    assert out.dtype is dtype
    close(out, expected, dtype)
    close(lse, expected_lse, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("latent", "rope"), [(32, 16), (20, 6), (512, 64), (96, 4)])
def test_widths(cpp, latent, rope, dtype):
    kv_dtype = "bf16" if dtype is torch.bfloat16 else "float32"
    batch, cache = case((5, 111), k=64, latent=latent, rope=rope, kv_dtype=kv_dtype)
    q = random(2, 4, latent + rope, seed=7, dtype=dtype)
    out, _ = cpp.sparse_mla(q, cache, batch, 64, latent=latent, scale=0.1)
    close(out, sparse_mla(q, cache, batch, 64, latent=latent, scale=0.1)[0], dtype)


@pytest.mark.parametrize("heads", [8, 9, 20])
def test_more_keys_than_one_block(cpp, heads):
    """Two to six blocks of 64 keys, the last of them in part; the largest score stands in any of them."""
    lengths = (130, 191, 300, 370)
    batch, cache = case(lengths, k=400, kv_dtype="bf16", max_len=448, share=1.0)
    q = random(len(lengths), heads, 144, seed=7, dtype=torch.bfloat16, scale=3.0)
    out, lse = cpp.sparse_mla(q, cache, batch, 400, latent=128, scale=0.1)
    expected, expected_lse = sparse_mla(q, cache, batch, 400, latent=128, scale=0.1)
    close(out, expected, torch.bfloat16)
    close(lse, expected_lse, torch.float32)


@pytest.mark.parametrize("kv_dtype", ["float32", "bf16"])
@pytest.mark.parametrize("key", [0, 1, 15, 16, 63, 64, 98])
def test_a_key_that_is_not_finite_is_noticed(cpp, kv_dtype, key):
    batch, cache = case((99, 99), k=99, kv_dtype=kv_dtype, share=1.0)
    cache.kv.flatten(0, 1)[key_slots(batch, 0, 99)[int(batch.topk_indices[0, key])], 3] = torch.nan
    q = random(2, 9, 144, seed=7, dtype=cache.kv.dtype)
    out, lse = cpp.sparse_mla(q, cache, batch, 99, latent=128, scale=0.1)
    assert out[0].isnan().all() and lse[0].isnan().all()
    assert out[1].isfinite().all() and lse[1].isfinite().all()


def test_rows_do_not_depend_on_their_number(cpp):
    """Rows of one request, which the kernel lets share what they have read."""
    batch = paged_batch([(0, 91 + t) for t in range(21)], requests=1, k=64, max_len=192)
    cache = empty_cache(
        blocks=1 + batch.block_table.numel(),
        latent=128,
        rope=16,
        index_dim=32,
        kv_dtype="bf16",
        index_dtype="bf16",
    )
    keys = random(111, 144, seed=3)
    mla_cache_write(keys[:, :128], keys[:, 128:], key_slots(batch, 0, 111), cache)
    for t in range(21):
        batch.topk_indices[t] = torch.randperm(91 + t, generator=torch.Generator().manual_seed(t))[:64].int()
    q = random(21, 8, 144, seed=7, dtype=torch.bfloat16)
    whole, whole_lse = cpp.sparse_mla(q, cache, batch, 64, latent=128, scale=0.1)
    for t in (0, 3, 20):
        alone = replace(batch, topk_indices=batch.topk_indices[t : t + 1], req_rows=batch.req_rows[t : t + 1])
        out, lse = cpp.sparse_mla(q[t : t + 1], cache, alone, 64, latent=128, scale=0.1)
        assert torch.equal(out[0], whole[t]) and torch.equal(lse[0], whole_lse[t])


def test_an_empty_row_is_zero_with_lse_minus_infinity(cpp):
    batch, cache = case((0, 30), k=16)
    out, lse = cpp.sparse_mla(random(2, 4, 144), cache, batch, 16, latent=128, scale=0.1)
    assert out[0].eq(0).all()
    assert lse[0].isneginf().all()
    assert out.isfinite().all()


def test_no_rows(cpp):
    batch, cache = case((), k=16)
    out, lse = cpp.sparse_mla(random(0, 4, 144), cache, batch, 16, latent=128, scale=0.1)
    assert out.shape == (0, 4, 128) and lse.shape == (0, 4)


def test_one_key_returns_its_latent(cpp):
    batch, cache = case((1,), k=16)
    out, _ = cpp.sparse_mla(random(1, 2, 144, seed=7), cache, batch, 16, latent=128, scale=0.1)
    torch.testing.assert_close(out[0, 0], random(1, 144, seed=0)[0, :128])


def test_gaps_between_selected_keys(cpp):
    batch, cache = case((100,), k=64)
    q = random(1, 2, 144, seed=7)
    whole, _ = cpp.sparse_mla(q, cache, batch, 64, latent=128, scale=0.1)
    spread = torch.full((1, 128), -1, dtype=torch.int32)
    spread[:, 1::2] = batch.topk_indices
    batch.topk_indices.resize_(1, 128).copy_(spread)
    gapped, _ = cpp.sparse_mla(q, cache, batch, 128, latent=128, scale=0.1)
    assert torch.equal(whole, gapped)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_large_logits_do_not_overflow(cpp, sign):
    batch, cache = case((100,), k=64)
    q = sign * 1e4 * random(1, 2, 144, seed=7)
    out, lse = cpp.sparse_mla(q, cache, batch, 64, latent=128, scale=1.0)
    expected, expected_lse = sparse_mla(q, cache, batch, 64, latent=128, scale=1.0)
    close(out, expected, torch.float32)
    torch.testing.assert_close(lse, expected_lse, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_several_threads_split_rows_and_heads(cpp, dtype):
    batch, cache = case((100,), k=64, kv_dtype="bf16" if dtype is torch.bfloat16 else "float32")
    q = random(1, 20, 144, seed=7, dtype=dtype)
    alone = cpp.sparse_mla(q, cache, batch, 64, latent=128, scale=0.1)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        split = cpp.sparse_mla(q, cache, batch, 64, latent=128, scale=0.1)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(alone[0], split[0]) and torch.equal(alone[1], split[1])
