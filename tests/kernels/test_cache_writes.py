"""What cache writes leave behind, byte by byte, and what they must not touch."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
import torch

from paths.kernels.layouts import E4M3
from tests.kernels.inputs import (
    CACHE_DTYPES,
    IMPLEMENTATIONS,
    INDEX_DIM,
    LATENT,
    ODD_SIZES,
    ROPE,
    kernels,
    make_batch,
    poisoned_cache,
    randn,
)

EVERY = ("reference", *IMPLEMENTATIONS)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtypes", CACHE_DTYPES)
@pytest.mark.parametrize("tokens", ODD_SIZES)
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16])
def test_same_bytes_as_the_definition(impl, dtypes, tokens, source):
    batch, blocks = make_batch([(0, tokens), (62, 67)], k=8, padding=3)
    total = batch.num_tokens
    c, k_pe = randn(total, LATENT, seed=1, dtype=source), randn(total, ROPE, seed=2, dtype=source)
    index_k = randn(total, INDEX_DIM, seed=3, dtype=source)
    caches = []
    for name in (impl, "reference"):
        cache = poisoned_cache(blocks, *dtypes)
        kernels(name).mla_cache_write(c, k_pe, batch.slot_mapping, cache)
        kernels(name).index_k_write(index_k, batch.slot_mapping, cache, hadamard=False)
        caches.append(cache)
    assert torch.equal(as_bytes(caches[0].kv), as_bytes(caches[1].kv))
    assert torch.equal(as_bytes(caches[0].index), as_bytes(caches[1].index))
    written = (as_bytes(caches[0].kv).view(blocks, 64, -1) != 0xFF).any(-1)
    live = batch.slot_mapping[batch.slot_mapping >= 0]
    expected = torch.zeros(blocks * 64, dtype=torch.bool)
    expected[live] = True
    assert torch.equal(written.flatten(), expected)


@pytest.mark.parametrize("impl", EVERY)
def test_fp8_ds_mla_bytes_of_a_hand_made_vector(impl):
    """Tile 0 zero, tile 1 holds 448 and 1, tile 2 one huge outlier, tile 3 all 3.5."""
    c = torch.zeros(1, 512)
    c[0, 128], c[0, 129] = 448.0, 1.0
    c[0, 256], c[0, 257] = 448.0 * 1024, 1.0
    c[0, 384:] = 3.5
    k_pe = torch.zeros(1, 64)
    k_pe[0, 0], k_pe[0, 1] = 1.0, 1.0 + 2.0**-7 + 2.0**-9
    cache = poisoned_cache(2, "fp8_ds_mla", "fp8")
    kernels(impl).mla_cache_write(c, k_pe, torch.tensor([64 + 63]), cache)
    row = bytes(cache.kv[1, 63].tolist())
    assert len(row) == 656
    # e4m3: sign, 4 bits of exponent with bias 7, 3 bits of mantissa
    expected = bytearray(512)
    expected[128], expected[129] = 0x7E, 0x38
    expected[256], expected[257] = 0x7E, 0x00  # 1 / 1024 is below half the smallest step
    expected[384:512] = bytes([0x7E]) * 128
    assert row[:512] == bytes(expected)
    assert row[512:528] == struct.pack("<4f", 2.0**-22, 1.0, 1024.0, 2.0**-7)
    assert row[528:532] == bytes([0x80, 0x3F, 0x81, 0x3F])  # bfloat16, rounded to even
    assert row[532:] == bytes(124)
    assert (cache.kv[0] == 0xFF).all()


@pytest.mark.parametrize("impl", EVERY)
def test_index_cache_bytes(impl):
    """All keys of a block first, then all scales: key at offset × 128, scale at 64 × 128 + 4 × offset."""
    cache = poisoned_cache(3, "fp8", "fp8")
    k = torch.zeros(3, 128)
    k[0, 0], k[1, 127] = 448.0, -7.0
    kernels(impl).index_k_write(k, torch.tensor([2 * 64 + 5, 64, -1]), cache, hadamard=False)
    block = bytes(cache.index[2].tolist())
    assert len(block) == 64 * 132
    assert block[5 * 128 : 6 * 128] == bytes([0x7E]) + bytes(127)
    assert block[64 * 128 + 20 : 64 * 128 + 24] == struct.pack("<f", 1.0)
    other = bytes(cache.index[1].tolist())
    assert other[127] == 0xFE  # -7 / 2^-6 = -448
    assert other[64 * 128 : 64 * 128 + 4] == struct.pack("<f", 2.0**-6)
    touched = [set(range(5 * 128, 6 * 128)) | set(range(64 * 128 + 20, 64 * 128 + 24))]
    assert all(value == 0xFF for at, value in enumerate(block) if at not in touched[0])
    assert (cache.index[0] == 0xFF).all()


@pytest.mark.parametrize("impl", EVERY)
def test_fp8_scale_is_applied_and_saturates(impl):
    c = torch.zeros(1, LATENT)
    c[0, 0], c[0, 1], c[0, 2] = 0.5, 600.0, 1e6
    cache = poisoned_cache(1, "fp8", "fp8", k_scale=2.0)
    kernels(impl).mla_cache_write(c, torch.zeros(1, ROPE), torch.tensor([0]), cache)
    assert cache.kv.dtype is E4M3
    read = cache.kv[0, 0, :3].float() * 2.0
    assert read.tolist() == [0.5, 576.0, 896.0]  # 300 rounds to 288, the last is 448 × 2


@pytest.mark.parametrize("impl", EVERY)
def test_a_constant_layer_norm_output_is_stored_as_it_is(impl):
    cache = poisoned_cache(1, "bf16", "bf16")
    k = torch.full((1, INDEX_DIM), 0.3)
    kernels(impl).index_k_write(k, torch.tensor([7]), cache, hadamard=False)
    assert torch.equal(cache.index[0, 7], k[0].to(torch.bfloat16))


@pytest.mark.parametrize("impl", EVERY)
@pytest.mark.parametrize("index_dtype", ["float32", "bf16", "fp8"])
def test_rotated_products_are_kept(impl, index_dtype):
    """Query and key rotated alike: products stay, within the precision of the format."""
    ops = kernels(impl)
    q, k, w = randn(1, 16, 128, seed=4), randn(1, 128, seed=5), torch.ones(1, 16)
    products = []
    for rotated in (False, True):
        cache = poisoned_cache(1, "float32", index_dtype)
        ops.index_k_write(k, torch.tensor([0]), cache, hadamard=rotated)
        prepared, weights = ops.index_q_prepare(q, w, index_dtype=index_dtype, hadamard=rotated)
        if index_dtype == "fp8":
            key = cache.index[0, :128].view(E4M3).float() * cache.index[0, 8192:8196].view(torch.float32)
        else:
            key = cache.index[0, 0].float()
        products.append(prepared[0].float() @ key * weights[0])
    tolerance = {"float32": 1e-5, "bf16": 0.02, "fp8": 0.12}[index_dtype]
    torch.testing.assert_close(products[0], products[1], rtol=0, atol=tolerance)
    assert not torch.equal(products[0], products[1])  # the rotation was applied


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("index_dtype", ["float32", "bf16", "fp8"])
@pytest.mark.parametrize("tokens", ODD_SIZES)
def test_query_preparation(impl, index_dtype, tokens):
    q, w = randn(tokens, 16, 128, seed=6), randn(tokens, 16, seed=7)
    prepared, weights = kernels(impl).index_q_prepare(q, w, index_dtype=index_dtype, hadamard=False)
    expected, expected_weights = kernels("reference").index_q_prepare(
        q, w, index_dtype=index_dtype, hadamard=False
    )
    assert prepared.dtype == expected.dtype
    assert torch.equal(as_bytes(prepared), as_bytes(expected))
    torch.testing.assert_close(weights, expected_weights, rtol=1e-6, atol=0)


@pytest.mark.parametrize("impl", EVERY)
def test_folded_constants(impl):
    """nI^-1/2 × dI^-1/2 for 64 heads of 128 is 0.011048543456; a zero query has the floor scale."""
    _, weights = kernels(impl).index_q_prepare(
        torch.zeros(1, 64, 128), torch.ones(1, 64), index_dtype="float32", hadamard=False
    )
    assert weights[0, 0].item() == pytest.approx(0.011048543456, rel=1e-6)
    zeros, scaled = kernels(impl).index_q_prepare(
        torch.zeros(1, 64, 128), torch.ones(1, 64), index_dtype="fp8", hadamard=False
    )
    assert scaled[0, 0].item() == pytest.approx(0.011048543456 * 2.0**-22, rel=1e-6)
    assert (zeros.float() == 0).all()


@pytest.mark.parametrize("impl", EVERY)
@pytest.mark.parametrize("dtypes", CACHE_DTYPES)
def test_blocks_may_stand_apart(impl, dtypes):
    """Views of every second block: nothing is lost, and nothing lands between them."""
    batch, blocks = make_batch([(0, 65)], k=8, padding=1)
    c, k_pe, key = (randn(66, width, seed=width) for width in (LATENT, ROPE, INDEX_DIM))
    adjacent, wide = poisoned_cache(blocks, *dtypes), poisoned_cache(2 * blocks, *dtypes)
    apart = replace(wide, kv=wide.kv[::2], index=wide.index[::2])
    for cache in (adjacent, apart):
        kernels(impl).mla_cache_write(c, k_pe, batch.slot_mapping, cache)
        kernels(impl).index_k_write(key, batch.slot_mapping, cache, hadamard=False)
    for field in ("kv", "index"):
        whole, expected = getattr(wide, field), getattr(adjacent, field)
        assert torch.equal(as_bytes(whole[::2]), as_bytes(expected))
        assert (as_bytes(whole[1::2]) == 0xFF).all() and (as_bytes(expected) != 0xFF).any()
