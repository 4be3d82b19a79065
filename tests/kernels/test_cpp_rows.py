"""C++ norms, RoPE, routing and experts against their definitions."""

from __future__ import annotations

import pytest
import torch

from paths.kernels.add_rms_norm.reference import add_rms_norm
from paths.kernels.moe_experts.reference import moe_experts
from paths.kernels.moe_route.reference import moe_route
from paths.kernels.rms_norm.reference import rms_norm
from paths.kernels.rope.reference import rope
from tests.kernels.cpp_cases import DTYPES, SIZES, VARIANTS, close, cpp_kernels, near, random, strided


@pytest.fixture(params=VARIANTS)
def cpp(request):
    torch.manual_seed(0)
    return cpp_kernels(request.param)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("width", [1, 20, 111, 256])
def test_rms_norm(cpp, rows, width, dtype):
    x, weight = random(rows, width, dtype=dtype), random(width, seed=1)
    close(cpp.rms_norm(strided(x), weight, 1e-5), rms_norm(x, weight, 1e-5), dtype)


def test_rms_norm_of_zeros_and_nan(cpp):
    x = torch.stack([torch.zeros(40), torch.full((40,), torch.nan)])
    out = cpp.rms_norm(x, torch.ones(40), 1e-6)
    assert out[0].eq(0).all()
    assert out[1].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", SIZES)
def test_add_rms_norm(cpp, rows, dtype):
    x, residual = random(rows, 100, dtype=dtype), random(rows, 100, dtype=dtype, seed=1)
    weight = random(100, seed=2)
    normed, total = cpp.add_rms_norm(strided(x), strided(residual), weight, 1e-5)
    expected_normed, expected_total = add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, expected_total)
    close(normed, expected_normed, dtype)


def test_add_rms_norm_norms_the_unrounded_sum(cpp):
    x, residual = random(63, 256, dtype=torch.bfloat16), random(63, 256, dtype=torch.bfloat16, seed=1)
    exact = rms_norm(x.float() + residual.float(), torch.ones(256), 0.0)
    normed, _ = cpp.add_rms_norm(x, residual, torch.ones(256), 0.0)
    assert (normed == exact.bfloat16()).float().mean() > 0.99  # normed from the rounded sum: about 0.75


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("width", [2, 16, 64])
def test_rope(cpp, width, interleaved, dtype):
    angles = random(200, width // 2, seed=1)
    x, positions = random(63, 3, width, dtype=dtype), torch.randint(0, 200, (63,))
    tables = (angles.cos(), angles.sin(), positions)
    close(
        cpp.rope(strided(x), *tables, interleaved=interleaved),
        rope(x, *tables, interleaved=interleaved),
        dtype,
    )


def test_rope_refuses_a_position_beyond_the_table(cpp):
    table = torch.ones(8, 2)
    with pytest.raises(RuntimeError, match="position 8 outside the RoPE table of 8"):
        cpp.rope(torch.ones(1, 1, 4), table, table, torch.tensor([8]), interleaved=True)


ROUTING = {"n_group": 4, "topk_group": 2, "top_k": 3, "norm": True, "scaling": 2.5}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize(
    "routing", [ROUTING, {**ROUTING, "n_group": 1, "topk_group": 1}, {**ROUTING, "norm": False}]
)
def test_moe_route(cpp, rows, routing, dtype):
    x, gate, bias = random(rows, 100, dtype=dtype), random(16, 100, seed=1, scale=0.1), random(16, seed=2)
    weights, ids = cpp.moe_route(strided(x), gate, bias, **routing)
    expected_weights, expected_ids = moe_route(x, gate, bias, **routing)
    assert torch.equal(ids, expected_ids)
    close(weights, expected_weights, torch.float32)


def test_moe_route_ties_go_to_the_lower_id_and_excluded_groups_never_win(cpp):
    bias = torch.tensor([-9.0, -9.0, -9.0, -9.0, -8.0, -7.0, -7.5, -9.0])
    weights, ids = cpp.moe_route(
        torch.zeros(1, 8), torch.zeros(8, 8), bias, n_group=2, topk_group=1, top_k=4, norm=True, scaling=1.0
    )
    assert ids.tolist() == [[5, 6, 4, 7]]  # all of the second group, though every score is negative
    assert weights.tolist() == [[0.25] * 4]
    _, ids = cpp.moe_route(
        torch.zeros(1, 8),
        torch.zeros(8, 8),
        torch.zeros(8),
        n_group=2,
        topk_group=1,
        top_k=2,
        norm=True,
        scaling=1.0,
    )
    assert ids.tolist() == [[0, 1]]


def test_moe_route_with_all_sigmoids_at_zero_gives_zero_weights(cpp):
    gate = torch.full((4, 8), -100.0)
    weights, _ = cpp.moe_route(
        torch.ones(1, 8), gate, torch.zeros(4), n_group=1, topk_group=1, top_k=2, norm=True, scaling=2.5
    )
    assert weights.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize(("width", "inner"), [(20, 24), (100, 63), (256, 128)])
def test_moe_experts(cpp, rows, width, inner, dtype):
    x = random(rows, width, dtype=dtype)
    ids = torch.stack([torch.randperm(6)[:2] for _ in range(rows)]).int() if rows else torch.zeros(0, 2).int()
    ids[ids == 4] = 3  # expert 4 stays without a row; an expert may stand twice
    weights = random(rows, 2, seed=1)
    w13 = random(6, 2 * inner, width, seed=2, dtype=dtype, scale=width**-0.5)
    w2 = random(6, width, inner, seed=3, dtype=dtype, scale=inner**-0.5)
    near(cpp.moe_experts(strided(x), ids, weights, w13, w2), moe_experts(x, ids, weights, w13, w2), dtype)


@pytest.mark.parametrize("rows", [1, 100])
def test_moe_experts_all_rows_on_one_expert(cpp, rows):
    x, ids, weights = random(rows, 64), torch.full((rows, 1), 1, dtype=torch.int32), torch.ones(rows, 1)
    w13, w2 = random(2, 96, 64, seed=2, scale=0.1), random(2, 64, 48, seed=3, scale=0.1)
    close(cpp.moe_experts(x, ids, weights, w13, w2), moe_experts(x, ids, weights, w13, w2), torch.float32)


def test_moe_experts_survives_large_activations(cpp):
    x, ids = torch.full((1, 32), 300.0), torch.zeros(1, 1, dtype=torch.int32)
    w13 = torch.cat([torch.full((1, 32, 32), -1.0), torch.ones(1, 32, 32)], dim=1)
    out = cpp.moe_experts(x, ids, torch.ones(1, 1), w13, torch.ones(1, 32, 32))
    assert out.eq(0).all()  # silu(-9600) is 0, not NaN
