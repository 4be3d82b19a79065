"""Selection: exact, deterministic, and blind to everything beyond a row's length."""

from __future__ import annotations

import math

import pytest
import torch

from paths.kernels.index_topk import torch_impl
from paths.kernels.index_topk.reference import index_logits, visible_keys
from tests.kernels.inputs import (
    IMPLEMENTATIONS,
    INDEX_DIM,
    INDEX_HEADS,
    kernels,
    make_batch,
    poisoned_cache,
    randn,
    whole_slots,
)

EVERY = ("reference", *IMPLEMENTATIONS)


def filled(spans, *, k, index_dtype="float32", padding=0, seed=0):
    """A batch whose caches hold random index keys for all positions of its requests."""
    batch, blocks = make_batch(spans, k=k, padding=padding, seed=seed)
    cache = poisoned_cache(blocks, "float32", index_dtype)
    for row, (_, end) in enumerate(spans):
        keys = randn(end, INDEX_DIM, seed=100 + row + seed)
        kernels("reference").index_k_write(keys, whole_slots(batch, row, end), cache, hadamard=False)
    q = randn(batch.num_tokens, INDEX_HEADS, INDEX_DIM, seed=seed + 1)
    w = randn(batch.num_tokens, INDEX_HEADS, seed=seed + 2)
    prepared = kernels("reference").index_q_prepare(q, w, index_dtype=index_dtype, hadamard=False)
    return batch, cache, *prepared


def scored(scores, *, k, weight=1.0):
    """A one-row batch whose scores are exactly the given ones: one head, one dimension each."""
    values = torch.tensor(scores, dtype=torch.float32)
    length = len(scores)
    batch, blocks = make_batch([(length - 1, length)], k=k)
    cache = poisoned_cache(blocks)
    keys = torch.zeros(length, INDEX_DIM)
    keys[:, 0] = values.clamp(min=0)
    keys[:, 1] = (-values).clamp(min=0)
    keys[:, :2][values.isnan()] = math.nan
    slots = whole_slots(batch, 0, length)
    cache.index.view(-1, INDEX_DIM)[slots] = keys
    q = torch.zeros(1, 16, INDEX_DIM)
    q[0, 0, 0], q[0, 1, 1] = 1.0, 1.0
    weights = torch.zeros(1, 16)
    weights[0, 0], weights[0, 1] = weight, -weight
    return batch, cache, q, weights


def assert_selection(batch, cache, q, weights, k, tolerance=1e-5):
    """Every row holds k keys that are the best up to rounding, no key twice, none beyond the length."""
    for t in range(batch.num_tokens):
        length = max(int(batch.lengths[t]), 0)
        row = batch.topk_indices[t, :k].tolist()
        if length <= k:
            assert row == [*range(length)] + [-1] * (k - length)
            continue
        assert len(set(row)) == k and min(row) >= 0 and max(row) < length
        keys = visible_keys(cache, batch.block_table[int(batch.req_rows[t])], length)
        scores = index_logits(q[t], weights[t], keys)
        threshold = scores.sort(descending=True).values[k - 1]
        assert scores[row].min() >= threshold - tolerance
        assert set((scores > threshold + tolerance).nonzero().flatten().tolist()) <= set(row)


SPANS = [
    [(0, 1)],
    [(0, 63)],
    [(0, 64)],
    [(0, 65)],
    [(0, 111), (99, 100), (3, 7)],
    [(129, 130), (62, 63), (63, 64), (64, 65)],
    [(40, 100), (0, 0), (127, 129)],
]


@pytest.mark.parametrize("impl", EVERY)
@pytest.mark.parametrize("index_dtype", ["float32", "bf16", "fp8"])
@pytest.mark.parametrize("spans", SPANS, ids=str)
@pytest.mark.parametrize("k", [1, 10, 64])
def test_selection(impl, index_dtype, spans, k):
    batch, cache, q, weights = filled(spans, k=k, index_dtype=index_dtype, padding=2)
    kernels(impl).index_topk(q, weights, cache, batch, k)
    assert_selection(batch, cache, q, weights, k)


@pytest.mark.parametrize("impl", EVERY)
def test_no_rows(impl):
    batch, cache, q, weights = filled([(0, 0)], k=8)
    kernels(impl).index_topk(q, weights, cache, batch, 8)
    assert batch.topk_indices.shape == (0, 8)


@pytest.mark.parametrize("impl", EVERY)
@pytest.mark.parametrize(("length", "dropped"), [(7, 0), (8, 0), (9, 1)])
def test_length_around_k(impl, length, dropped):
    batch, cache, q, weights = filled([(length - 1, length)], k=8)
    kernels(impl).index_topk(q, weights, cache, batch, 8)
    row = batch.topk_indices[0].tolist()
    assert row.count(-1) == max(8 - length, 0)
    assert len(set(range(length)) - set(row)) == dropped


@pytest.mark.parametrize("impl", EVERY)
def test_length_zero_and_below_select_nothing(impl):
    batch, cache, q, weights = filled([(99, 100)], k=8, padding=2)
    batch.lengths[1], batch.lengths[2] = 0, -3
    kernels(impl).index_topk(q, weights, cache, batch, 8)
    assert (batch.topk_indices[1:] == -1).all()
    assert (batch.topk_indices[0] >= 0).all()


@pytest.mark.parametrize("impl", EVERY)
def test_equal_scores_go_to_the_lower_index(impl):
    batch, cache, q, weights = scored([0.0] * 100, k=10)
    kernels(impl).index_topk(q, weights, cache, batch, 10)
    assert batch.topk_indices[0].tolist() == list(range(10))


@pytest.mark.parametrize("impl", EVERY)
def test_negative_zero_equals_zero(impl):
    """A negative weight on a zero product gives -0, which must not lose against +0."""
    batch, cache, q, weights = scored([0.0, 0.0, 1.0, 0.0] * 25, k=30)
    weights[0, 2] = -1.0  # a head without any product: its share is -0 everywhere
    kernels(impl).index_topk(q, weights, cache, batch, 30)
    ones = list(range(2, 100, 4))
    zeros = [i for i in range(100) if i not in ones][:5]
    assert batch.topk_indices[0].tolist() == ones + zeros


@pytest.mark.parametrize("impl", EVERY)
def test_order_is_score_descending_then_index_ascending(impl):
    scores = [5.0, 7.0, 7.0, -1.0, 5.0, 3e38, -2.0, 6.0, -1.0, 5.0]
    batch, cache, q, weights = scored(scores, k=8)
    q *= 10  # the largest product overflows to +inf, which is selected first
    kernels(impl).index_topk(q, weights, cache, batch, 8)
    assert batch.topk_indices[0].tolist() == [5, 1, 2, 7, 0, 4, 9, 3]


@pytest.mark.parametrize("impl", EVERY)
def test_equal_scores_in_part_of_the_row(impl):
    """The last place is contested by many equal scores: the lowest index gets it."""
    batch, cache, q, weights = scored([1.0] * 50 + [2.0] * 9 + [1.0] * 50, k=10)
    kernels(impl).index_topk(q, weights, cache, batch, 10)
    assert batch.topk_indices[0].tolist() == [*range(50, 59), 0]


def test_reversed_ties_are_noticed(monkeypatch):
    """The tests of ties above are able to fail: this is what a preference for the higher index gives."""

    def reversed_ties(scores, k):
        order = scores.flip(-1).sort(dim=-1, descending=True, stable=True).indices[..., :k]
        return (scores.shape[-1] - 1 - order).int()

    monkeypatch.setattr(torch_impl, "_select", reversed_ties)
    for test in (test_equal_scores_go_to_the_lower_index, test_equal_scores_in_part_of_the_row):
        with pytest.raises(AssertionError):
            test("torch")


@pytest.mark.parametrize("impl", EVERY)
def test_all_negative_scores(impl):
    """Unwritten columns count as nothing, not as 0: they must not beat negative scores."""
    scores = [-1.0 - 0.01 * i for i in range(70)]
    batch, cache, q, weights = scored(scores, k=5)
    kernels(impl).index_topk(q, weights, cache, batch, 5)
    assert batch.topk_indices[0].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("impl", EVERY)
def test_nan_counts_as_minus_infinity(impl):
    scores = [math.nan, -5.0, math.nan, 3.0, -7.0, math.nan]
    batch, cache, q, weights = scored(scores, k=3)
    kernels(impl).index_topk(q, weights, cache, batch, 3)
    assert batch.topk_indices[0].tolist() == [3, 1, 4]
    batch, cache, q, weights = scored(scores, k=5)
    kernels(impl).index_topk(q, weights, cache, batch, 5)
    assert batch.topk_indices[0].tolist() == [3, 1, 4, 0, 2]  # still five different keys


@pytest.mark.parametrize("impl", EVERY)
def test_relu_is_before_the_weight(impl):
    """Heads score (+3, -3) and (+1, 0): with ReLU the first wins, 3 to 1; without it the second, 1 to 0."""
    batch, blocks = make_batch([(1, 2)], k=1)
    cache = poisoned_cache(blocks)
    keys = torch.zeros(2, INDEX_DIM)
    keys[0, 0], keys[0, 1], keys[1, 0] = 3.0, -3.0, 1.0
    cache.index.view(-1, INDEX_DIM)[whole_slots(batch, 0, 2)] = keys
    q = torch.zeros(1, 16, INDEX_DIM)
    q[0, 0, 0], q[0, 1, 1] = 1.0, 1.0
    weights = torch.zeros(1, 16)
    weights[0, :2] = 1.0
    kernels(impl).index_topk(q, weights, cache, batch, 1)
    assert batch.topk_indices[0].tolist() == [0]
    weights[0, :2] = -1.0  # signed weights: the order turns round
    kernels(impl).index_topk(q, weights, cache, batch, 1)
    assert batch.topk_indices[0].tolist() == [1]


@pytest.mark.parametrize("impl", EVERY)
def test_scores_that_are_equal_in_half_precision(impl):
    scores = [1.0 + i * 2.0**-23 for i in range(4000)]
    batch, cache, q, weights = scored(scores, k=16)
    kernels(impl).index_topk(q, weights, cache, batch, 16)
    assert sorted(batch.topk_indices[0].tolist()) == list(range(3984, 4000))


@pytest.mark.parametrize("impl", EVERY)
def test_a_neighbour_is_never_seen(impl):
    """Changing one request's keys changes nothing for another."""
    spans = [(60, 100), (100, 130)]
    batch, cache, q, weights = filled(spans, k=10)
    kernels(impl).index_topk(q, weights, cache, batch, 10)
    before = batch.topk_indices.clone()
    cache.index.view(-1, INDEX_DIM)[whole_slots(batch, 1, 130)] = 1e6
    kernels(impl).index_topk(q, weights, cache, batch, 10)
    assert torch.equal(batch.topk_indices[:40], before[:40])
    assert not torch.equal(batch.topk_indices[40:], before[40:])


@pytest.mark.parametrize("impl", EVERY)
def test_speculative_rows_see_one_key_more_each(impl):
    batch, cache, q, weights = filled([(20, 24)], k=30)
    kernels(impl).index_topk(q, weights, cache, batch, 30)
    assert [(row >= 0).sum().item() for row in batch.topk_indices] == [21, 22, 23, 24]
