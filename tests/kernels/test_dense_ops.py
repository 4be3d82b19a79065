"""Norms, RoPE and MoE: every implementation against the definition, on odd sizes."""

from __future__ import annotations

import math

import pytest
import torch

from paths.kernels.rope.reference import rope as rope_reference
from paths.models.rope import RopeConfig, rope_tables
from tests.kernels.inputs import IMPLEMENTATIONS, ODD_SIZES, assert_close, generator, kernels, randn

DTYPES = [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)]
PLAIN = RopeConfig(theta=10000.0, dim=64)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("tokens", ODD_SIZES)
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_norms(impl, tokens, dtype, tolerance):
    x, residual = randn(tokens, 100, seed=1, dtype=dtype), randn(tokens, 100, seed=2, dtype=dtype)
    weight = 1.0 + randn(100, seed=3)
    ops, definition = kernels(impl), kernels("reference")
    assert_close(ops.rms_norm(x, weight, 1e-5), definition.rms_norm(x, weight, 1e-5), tolerance)
    results = zip(
        ops.add_rms_norm(x, residual, weight, 1e-6),
        definition.add_rms_norm(x, residual, weight, 1e-6),
        strict=True,
    )
    for actual, expected in results:
        assert_close(actual, expected, tolerance)


@pytest.mark.parametrize("impl", ("reference", *IMPLEMENTATIONS))
def test_the_float32_sum_is_normed_not_the_stored_residual(impl):
    x = torch.full((1, 64), 2.0**-9, dtype=torch.bfloat16)
    residual = torch.ones(1, 64, dtype=torch.bfloat16)
    x[0, 0] = 2.0
    normed, total = kernels(impl).add_rms_norm(x, residual, torch.ones(64), 0.0)
    exact = x.double() + residual.double()
    expected = (exact / exact.square().mean().sqrt()).to(torch.bfloat16)
    assert torch.equal(normed, expected)
    assert total[0, 1] == 1.0  # 1 + 2^-9 rounds to 1 in bfloat16


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("tokens", ODD_SIZES)
@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES)
def test_rope(impl, interleaved, tokens, dtype, tolerance):
    cos, sin = rope_tables(PLAIN, 300)
    x = randn(tokens, 3, 64, seed=4, dtype=dtype)
    positions = torch.randint(0, 300, (tokens,), generator=generator(5))
    actual = kernels(impl).rope(x, cos, sin, positions, interleaved=interleaved)
    expected = kernels("reference").rope(x, cos, sin, positions, interleaved=interleaved)
    assert_close(actual, expected, tolerance)


@pytest.mark.parametrize("impl", ("reference", *IMPLEMENTATIONS))
def test_rope_layouts_by_hand(impl):
    """[1, 2, 3, 4] at position 1 with two frequencies: the pairs are (1, 2), (3, 4) or (1, 3), (2, 4)."""
    angles = [1.0, 0.01]
    cos = torch.tensor([[1.0, 1.0], [math.cos(a) for a in angles]])
    sin = torch.tensor([[0.0, 0.0], [math.sin(a) for a in angles]])
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    c0, s0, c1, s1 = math.cos(1.0), math.sin(1.0), math.cos(0.01), math.sin(0.01)
    one = torch.tensor([1])
    interleaved = kernels(impl).rope(x, cos, sin, one, interleaved=True)
    half_split = kernels(impl).rope(x, cos, sin, one, interleaved=False)
    assert_close(
        interleaved,
        torch.tensor([[[c0 - 2 * s0, s0 + 2 * c0, 3 * c1 - 4 * s1, 3 * s1 + 4 * c1]]]),
        1e-6,
    )
    assert_close(
        half_split,
        torch.tensor([[[c0 - 3 * s0, 2 * c1 - 4 * s1, s0 + 3 * c0, 2 * s1 + 4 * c1]]]),
        1e-6,
    )
    assert not torch.allclose(interleaved, half_split)
    assert torch.equal(kernels(impl).rope(x, cos, sin, torch.tensor([0]), interleaved=True), x)


@pytest.mark.parametrize("interleaved", [True, False])
def test_rope_products_depend_on_the_distance_only(interleaved):
    cos, sin = rope_tables(PLAIN, 200)
    q, k = randn(1, 1, 64, seed=6), randn(1, 1, 64, seed=7)

    def product(p: int, s: int) -> float:
        turned = [
            rope_reference(v, cos, sin, torch.tensor([at]), interleaved=interleaved).double()
            for v, at in ((q, p), (k, s))
        ]
        return (turned[0] * turned[1]).sum().item()

    assert product(10, 3) == pytest.approx(product(150, 143), abs=1e-4)
    assert product(10, 3) != pytest.approx(product(10, 4), abs=1e-2)


def route(impl, x, gate, bias, **changes):
    options = {"n_group": 1, "topk_group": 1, "top_k": 2, "norm": True, "scaling": 1.0} | changes
    return kernels(impl).moe_route(x, gate, bias, **options)


def logits_route(impl, logits, bias, **changes):
    """Route rows of given logits: the gate is the identity."""
    x = torch.tensor(logits)
    return route(impl, x, torch.eye(x.shape[1]), torch.tensor(bias), **changes)


EVERY = ("reference", *IMPLEMENTATIONS)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("tokens", ODD_SIZES)
@pytest.mark.parametrize("groups", [(1, 1), (4, 2)])
@pytest.mark.parametrize("norm", [True, False])
def test_routing(impl, tokens, groups, norm):
    x, gate, bias = randn(tokens, 48, seed=8), randn(16, 48, seed=9), randn(16, seed=10) * 0.3
    options = {"n_group": groups[0], "topk_group": groups[1], "top_k": 3, "norm": norm, "scaling": 2.5}
    weights, ids = route(impl, x, gate, bias, **options)
    expected_weights, expected_ids = route("reference", x, gate, bias, **options)
    assert torch.equal(ids, expected_ids)
    assert_close(weights, expected_weights, 1e-5)


@pytest.mark.parametrize("impl", EVERY)
def test_bias_selects_and_never_weighs(impl):
    logits = [[0.0, 1.0, 2.0, 3.0]]
    weights, ids = logits_route(impl, logits, [50.0, 50.0, 0.0, 0.0])
    assert sorted(ids[0].tolist()) == [0, 1]
    sigmoids = torch.sigmoid(torch.tensor(logits))[0]
    expected = sigmoids[ids[0].long()] / sigmoids[:2].sum()
    assert_close(weights[0], expected, 1e-6)


@pytest.mark.parametrize("impl", EVERY)
def test_group_score_is_the_sum_of_the_two_best(impl):
    """Group 0 wins by its maximum, group 1 by its mean, group 2 by the sum of its two best."""

    def logit(p: float) -> float:
        return math.log(p / (1 - p))

    scores = [[0.95, 0.10, 0.10, 0.10], [0.50, 0.50, 0.50, 0.50], [0.70, 0.60, 0.05, 0.05]]
    row = [[logit(p) for group in scores for p in group]]
    _, ids = logits_route(impl, row, [0.0] * 12, n_group=3, topk_group=1)
    assert ids[0].tolist() == [8, 9]


@pytest.mark.parametrize("impl", EVERY)
def test_experts_of_dropped_groups_cannot_win_with_a_negative_bias(impl):
    # all biased scores are negative: a masked expert at 0 would beat the kept ones
    _, ids = logits_route(impl, [[0.0, 0.0, 0.0, 0.0]], [-2.0, -2.0, -3.0, -3.0], n_group=2, topk_group=1)
    assert sorted(ids[0].tolist()) == [0, 1]


@pytest.mark.parametrize("impl", EVERY)
def test_routing_ties_go_to_the_lower_id(impl):
    _, ids = logits_route(impl, [[1.0, 1.0, 1.0, 1.0]], [0.0] * 4)
    assert ids[0].tolist() == [0, 1]
    _, grouped = logits_route(impl, [[1.0] * 6], [0.0] * 6, n_group=3, topk_group=2, top_k=3)
    assert grouped[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("impl", EVERY)
def test_underflowing_sigmoids_give_zero_weights(impl):
    weights, _ = logits_route(impl, [[-200.0] * 4], [0.0] * 4)
    assert torch.equal(weights, torch.zeros(1, 2))
    weights, _ = logits_route(impl, [[200.0, -200.0, 200.0, 0.0]], [0.0] * 4)
    assert_close(weights, torch.tensor([[0.5, 0.5]]), 1e-6)


@pytest.mark.parametrize("impl", EVERY)
def test_scaling_is_applied_once_and_after_normalising(impl):
    weights, _ = logits_route(impl, [[0.3, 1.0, 2.0, -1.0]], [0.0] * 4, scaling=2.5)
    assert weights.sum().item() == pytest.approx(2.5, rel=1e-6)


@pytest.mark.parametrize("impl", EVERY)
def test_router_works_in_float32(impl):
    """Two experts whose logits differ by less than a bfloat16 step: float32 tells them apart."""
    x = torch.tensor([[1.0, 1.0]], dtype=torch.bfloat16)
    gate = torch.tensor([[4.0, 0.0], [4.0, 0.001], [-9.0, 0.0]])
    _, ids = route(impl, x, gate, torch.zeros(3), top_k=1)
    assert ids[0].tolist() == [1]


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("tokens", ODD_SIZES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_experts(impl, tokens, dtype, tolerance):
    experts, dim, width = 8, 64, 32
    x = randn(tokens, dim, seed=11, dtype=dtype)
    w13 = (randn(experts, 2 * width, dim, seed=12) / 8).to(dtype)
    w2 = (randn(experts, dim, width, seed=13) / 6).to(dtype)
    ids = torch.stack([torch.randperm(experts, generator=generator(t))[:2] for t in range(tokens + 1)])
    ids = ids[:tokens].int()
    weights = randn(tokens, 2, seed=14).abs()
    actual = kernels(impl).moe_experts(x, ids, weights, w13, w2)
    assert_close(actual, kernels("reference").moe_experts(x, ids, weights, w13, w2), tolerance)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_experts_without_tokens_and_an_expert_with_all_of_them(impl):
    x, w13, w2 = randn(63, 64, seed=15), randn(8, 64, 64, seed=16) / 8, randn(8, 64, 32, seed=17) / 6
    ids = torch.tensor([[7, 3]] * 63, dtype=torch.int32)
    weights = torch.full((63, 2), 0.5)
    actual = kernels(impl).moe_experts(x, ids, weights, w13, w2)
    assert_close(actual, kernels("reference").moe_experts(x, ids, weights, w13, w2), 1e-5)
