"""C++ index scores and top-k against the definition."""

from __future__ import annotations

import pytest
import torch

from paths.kernels.index_k_write.reference import index_k_write
from paths.kernels.index_q_prepare.reference import index_q_prepare
from paths.kernels.index_topk.reference import index_logits, index_topk, visible_keys
from tests.kernels.cpp_cases import (
    INDEX_DTYPES,
    VARIANTS,
    cpp_kernels,
    empty_cache,
    key_slots,
    paged_batch,
    random,
)


@pytest.fixture(params=VARIANTS)
def cpp(request):
    return cpp_kernels(request.param)


def filled_cache(batch, *, requests, max_len, index_dtype="float32", dim=32):
    cache = empty_cache(
        blocks=1 + batch.block_table.numel(),
        latent=128,
        rope=16,
        index_dim=dim,
        kv_dtype="bf16",
        index_dtype=index_dtype,
    )
    for request in range(requests):
        longest = max(batch.lengths[batch.req_rows == request].tolist(), default=0)
        if longest > 0:
            keys = random(longest, dim, seed=100 + request)
            index_k_write(keys, key_slots(batch, request, longest), cache, hadamard=False)
    return cache


def check(cpp, rows, *, k, heads=16, dim=32, index_dtype="float32", requests=3, max_len=192, seed=0):
    batch = paged_batch(rows, requests=requests, k=k, max_len=max_len, seed=seed)
    cache = filled_cache(batch, requests=requests, max_len=max_len, index_dtype=index_dtype, dim=dim)
    q, weights = index_q_prepare(
        random(len(rows), heads, dim, seed=1),
        random(len(rows), heads, seed=2),
        index_dtype=index_dtype,
        hadamard=False,
    )
    cpp.index_topk(q, weights, cache, batch, k)
    mine = batch.topk_indices.clone()
    index_topk(q, weights, cache, batch, k)
    expected = batch.topk_indices
    for t, (request, length) in enumerate(rows):
        if length <= k:
            assert torch.equal(mine[t], expected[t]), t
            continue
        scores = index_logits(q[t], weights[t], visible_keys(cache, batch.block_table[request], length))
        chosen = mine[t].tolist()
        assert sorted(set(chosen)) == sorted(chosen), f"row {t} has duplicates"
        assert min(chosen) >= 0
        assert max(chosen) < length
        limit = scores[expected[t].long()].min()
        left_out = torch.ones(length, dtype=torch.bool)
        left_out[chosen] = False
        assert scores[chosen].min() >= limit - 1e-5
        assert scores[left_out].max() <= limit + 1e-5
        assert scores[chosen].diff().max() <= 1e-5 if k > 1 else True  # best first


@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
@pytest.mark.parametrize("heads", [1, 16, 32, 20])
def test_lengths_around_k_and_pages(cpp, index_dtype, heads):
    lengths = [0, -3, 1, 7, 8, 9, 63, 64, 65, 100, 111, 128, 129, 191]
    check(cpp, [(i % 3, n) for i, n in enumerate(lengths)], k=8, heads=heads, index_dtype=index_dtype)


@pytest.mark.parametrize("k", [1, 8, 63, 64, 100, 191, 500])
def test_sizes_of_k(cpp, k):
    check(cpp, [(0, 191), (1, 100), (2, 64)], k=k)


def test_a_prefill_chunk_shares_its_keys(cpp):
    rows = [(0, n) for n in range(60, 160)] + [(1, n) for n in range(1, 40)] + [(2, 150)]
    check(cpp, rows, k=16)


def test_no_rows(cpp):
    check(cpp, [], k=8)


def test_production_widths(cpp):
    check(cpp, [(0, 190), (1, 130)], k=64, heads=64, dim=128, index_dtype="fp8")


@pytest.mark.parametrize("heads", [3, 20])
@pytest.mark.parametrize("dim", [2, 38, 96])
def test_widths_beside_whole_vectors(cpp, dim, heads):
    check(cpp, [(0, 111), (1, 63), (2, 30)], k=16, heads=heads, dim=dim, index_dtype="bf16")


def scored(cpp, keys, weights, *, k):
    """One row whose single head sees `keys` through a query of one."""
    batch = paged_batch([(0, len(keys))], requests=1, k=k, max_len=len(keys))
    cache = filled_cache(batch, requests=1, max_len=len(keys), dim=1)
    cache.index.view(-1)[key_slots(batch, 0, len(keys))] = torch.tensor(keys)
    cpp.index_topk(torch.ones(1, 1, 1), torch.tensor([[weights]]), cache, batch, k)
    return batch.topk_indices[0].tolist()


def test_ties_go_to_the_lower_index(cpp):
    assert scored(cpp, [1.0] * 70, 1.0, k=3) == [0, 1, 2]
    assert scored(cpp, [1.0, 2.0, 1.0, 2.0, 1.0], 1.0, k=4) == [1, 3, 0, 2]


@pytest.mark.parametrize("k", [1, 63, 64, 256, 257, 499])
@pytest.mark.parametrize("levels", [1, 2, 9, 100000])
def test_order_of_many_with_ties(cpp, levels, k):
    keys = torch.randint(0, levels, (500,), generator=torch.Generator().manual_seed(levels)) / 7
    expected = keys.sort(descending=True, stable=True).indices[:k].tolist()
    assert scored(cpp, keys.tolist(), 1.0, k=k) == expected


def test_minus_zero_equals_zero(cpp):
    # a negative key gives ReLU 0 and a negative weight makes it -0.0
    assert scored(cpp, [0.0, -1.0, 0.0, -1.0, 5.0], -1.0, k=4) == [0, 1, 2, 3]


def test_nan_ranks_last_and_infinity_first(cpp):
    assert scored(cpp, [torch.nan, 1.0, torch.inf, 2.0], 1.0, k=3) == [2, 3, 1]
    assert scored(cpp, [torch.nan] * 5, 1.0, k=3) == [0, 1, 2]


def test_relu_stands_before_the_signed_weight(cpp):
    assert scored(cpp, [3.0, -9.0, 1.0, 2.0], -1.0, k=3) == [1, 2, 3]


@pytest.mark.parametrize("index_dtype", INDEX_DTYPES)
def test_scores_do_not_depend_on_the_batch(cpp, index_dtype):
    """A row alone and among its neighbours selects the same keys in the same order."""
    query_dtypes = {"float32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}
    rows = [(0, n) for n in range(100, 163)]
    together = paged_batch(rows, requests=1, k=16, max_len=192)
    cache = filled_cache(together, requests=1, max_len=192, index_dtype=index_dtype)
    q, weights = random(63, 16, 32, seed=1).to(query_dtypes[index_dtype]), random(63, 16, seed=2)
    cpp.index_topk(q, weights, cache, together, 16)
    for t in (0, 1, 31, 32, 61, 62):
        alone = paged_batch([rows[t]], requests=1, k=16, max_len=192)
        cpp.index_topk(q[t : t + 1], weights[t : t + 1], cache, alone, 16)
        assert torch.equal(alone.topk_indices[0], together.topk_indices[t])
