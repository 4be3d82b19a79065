"""Attention over the selection: every implementation, cache format and awkward row."""

from __future__ import annotations

import math

import pytest
import torch

from paths.models.mla import absorb_query, dense_mla, expand_value
from tests.kernels.inputs import (
    CACHE_DTYPES,
    IMPLEMENTATIONS,
    LATENT,
    ODD_SIZES,
    ROPE,
    assert_close,
    generator,
    kernels,
    make_batch,
    poisoned_cache,
    randn,
    whole_slots,
)

EVERY = ("reference", *IMPLEMENTATIONS)
HEADS = 8
SCALE = 0.1


def filled(spans, *, k, kv_dtype="float32", padding=0, k_scale=1.0):
    """A batch with written caches and a random selection: permuted, with gaps and -1 in between."""
    batch, blocks = make_batch(spans, k=k, padding=padding)
    cache = poisoned_cache(blocks, kv_dtype, k_scale=k_scale)
    for row, (_, end) in enumerate(spans):
        c, k_pe = randn(end, LATENT, seed=10 + row), randn(end, ROPE, seed=20 + row)
        kernels("reference").mla_cache_write(c, k_pe, whole_slots(batch, row, end), cache)
    batch.topk_indices.fill_(-1)
    for t in range(batch.num_tokens - padding):
        chosen = torch.randperm(int(batch.lengths[t]), generator=generator(t))[: max(1, k - t % 3)]
        batch.topk_indices[t, : min(k, len(chosen))] = chosen[:k].int()
    return batch, cache


def attend(impl, q, cache, batch, k, scale=SCALE):
    return kernels(impl).sparse_mla(q, cache, batch, k, latent=LATENT, scale=scale)


def queries(tokens, *, seed=1, dtype=torch.float32):
    return randn(tokens, HEADS, LATENT + ROPE, seed=seed, dtype=dtype)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("kv_dtype", [kv for kv, _ in CACHE_DTYPES])
@pytest.mark.parametrize("tokens", ODD_SIZES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_against_the_definition(impl, kv_dtype, tokens, dtype, tolerance):
    batch, cache = filled([(0, tokens), (62, 66)], k=20, kv_dtype=kv_dtype, padding=2)
    q = queries(batch.num_tokens, dtype=dtype)
    out, lse = attend(impl, q, cache, batch, 20)
    expected, expected_lse = attend("reference", q, cache, batch, 20)
    assert_close(out, expected, tolerance)
    assert_close(lse, expected_lse, max(tolerance / 10, 1e-5))


@pytest.mark.parametrize("impl", EVERY)
@pytest.mark.parametrize("kv_dtype", [kv for kv, _ in CACHE_DTYPES])
def test_a_row_that_selects_nothing(impl, kv_dtype):
    batch, cache = filled([(0, 65)], k=8, kv_dtype=kv_dtype, padding=1)
    batch.topk_indices[3] = -1
    q = queries(66)
    q[65] = math.nan  # a padding row may hold anything
    out, lse = attend(impl, q, cache, batch, 8)
    for row in (3, 65):
        assert torch.equal(out[row], torch.zeros(HEADS, LATENT))
        assert torch.equal(lse[row], torch.full((HEADS,), -math.inf))
    assert out[:65].isfinite().all()


@pytest.mark.parametrize("impl", EVERY)
def test_a_single_key_is_returned_as_it_is(impl):
    batch, cache = filled([(99, 100)], k=8)
    batch.topk_indices[0] = torch.tensor([-1, -1, 70, -1, -1, -1, -1, -1])
    q = queries(1)
    out, lse = attend(impl, q, cache, batch, 8)
    key = cache.kv.flatten(0, 1)[whole_slots(batch, 0, 100)[70]]
    assert_close(out, key[:LATENT].expand(1, HEADS, LATENT).contiguous(), 1e-6)
    assert_close(lse, (q @ key * SCALE), 1e-5)


@pytest.mark.parametrize("impl", EVERY)
def test_the_order_of_the_selection_is_irrelevant_but_its_members_are_not(impl):
    batch, cache = filled([(99, 100)], k=6)
    q = queries(1)

    def with_indices(*indices):
        batch.topk_indices[0] = torch.tensor(indices)
        return attend(impl, q, cache, batch, 6)[0]

    first = with_indices(3, 0, 64, 99, 17, -1)
    assert_close(with_indices(-1, 99, 17, 3, 64, 0), first, 1e-5)
    assert not torch.allclose(with_indices(4, 1, 65, 98, 18, -1), first, atol=1e-3)


@pytest.mark.parametrize("impl", EVERY)
@pytest.mark.parametrize("magnitude", [1e4, -1e4])
def test_large_logits(impl, magnitude):
    batch, cache = filled([(99, 100)], k=8)
    q = queries(1) * magnitude
    out, lse = attend(impl, q, cache, batch, 8, scale=1.0)
    assert out.isfinite().all()
    assert lse.isfinite().all()
    assert_close(out, attend("reference", q, cache, batch, 8, scale=1.0)[0], 1e-4)


@pytest.mark.parametrize("impl", EVERY)
def test_fp8_scale(impl):
    """Twice the values under twice the scale: the same bytes, logits and outputs twice as large."""
    batch, cache = filled([(0, 63)], k=8, kv_dtype="fp8")
    q = queries(63)
    out, _ = attend(impl, q, cache, batch, 8, scale=0.0)
    doubled = type(cache)(
        kv=cache.kv, kv_dtype="fp8", k_scale=torch.tensor(2.0), index=None, index_dtype="fp8"
    )
    assert_close(attend(impl, q, doubled, batch, 8, scale=0.0)[0], 2 * out, 1e-6)
    half = attend(impl, q, doubled, batch, 8, scale=0.05)[1]
    assert_close(half, attend(impl, q, cache, batch, 8, scale=0.1)[1], 1e-5)


@pytest.mark.parametrize("impl", EVERY)
def test_fp8_quantizes_the_query_too(impl):
    batch, cache = filled([(99, 100)], k=8, kv_dtype="fp8")
    q = torch.full((1, HEADS, LATENT + ROPE), 1.05)  # between the steps 1 and 1.125
    rounded = torch.ones_like(q)
    assert_close(attend(impl, q, cache, batch, 8)[0], attend(impl, rounded, cache, batch, 8)[0], 1e-6)


@pytest.mark.parametrize("impl", EVERY)
def test_selecting_everything_equals_dense_attention_in_the_non_absorbed_form(impl):
    tokens, nope, value, scale = 100, 24, 20, 0.17
    batch, blocks = make_batch([(0, tokens)], k=tokens)
    cache = poisoned_cache(blocks)
    c, k_pe = randn(tokens, LATENT, seed=1), randn(tokens, ROPE, seed=2)
    q_nope, q_pe = randn(tokens, HEADS, nope, seed=3), randn(tokens, HEADS, ROPE, seed=4)
    w_uk, w_uv = randn(HEADS, nope, LATENT, seed=5) / 20, randn(HEADS, value, LATENT, seed=6) / 20
    kernels("reference").mla_cache_write(c, k_pe, batch.slot_mapping, cache)
    columns = torch.arange(tokens, dtype=torch.int32)
    batch.topk_indices[:] = torch.where(columns < batch.lengths[:, None], columns, -1)
    q = torch.cat([absorb_query(q_nope, w_uk), q_pe], dim=-1)
    out, _ = attend(impl, q, cache, batch, tokens, scale=scale)
    dense = dense_mla(q_nope, q_pe, c, k_pe, w_uk=w_uk, w_uv=w_uv, scale=scale)
    assert_close(expand_value(out, w_uv).contiguous(), dense.contiguous(), 1e-5)


@pytest.mark.parametrize("impl", EVERY)
def test_two_shards_merge_by_their_lse(impl):
    """Natural-log lse: halves of a selection combine to the whole, and an empty half changes nothing."""
    batch, cache = filled([(99, 100)], k=8)
    batch.topk_indices[0] = torch.tensor([5, 9, 64, 70, 2, 33, 98, 0])
    q = queries(1)
    whole, _ = attend(impl, q, cache, batch, 8)
    chosen = batch.topk_indices.clone()

    def part(columns):
        batch.topk_indices.fill_(-1)
        batch.topk_indices[:, : len(columns)] = chosen[:, columns]
        return attend(impl, q, cache, batch, 8)

    def merge(a, b):
        weight = torch.sigmoid(a[1] - b[1])[..., None]
        return a[0] * weight + b[0] * (1 - weight)

    assert_close(merge(part([0, 1, 2]), part([3, 4, 5, 6, 7])), whole, 1e-5)
    assert_close(merge(part(list(range(8))), part([])), whole, 1e-6)
