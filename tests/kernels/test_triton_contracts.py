"""What Triton launchers promise beside the values: refusals, padding rows, NaN rows, the same bits."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from tests.kernels.triton_child import assert_passes

pytest.importorskip("triton")

CPU = torch.device("cpu")


def first_call(module: str, name: str):
    """Arguments of the check case `name`, and the launcher of its op."""
    from importlib import import_module

    op = module.rsplit(".", maxsplit=1)[-1]
    cases = {case.name: case for case in import_module(f"{module}.cases").check_cases()}
    call = cases[name].make(torch.Generator().manual_seed(3), CPU)
    return getattr(import_module(f"{module}.triton_impl"), op), list(call.args), dict(call.kwargs)


def refused(module: str, name: str, change, match: str) -> None:
    """Nothing is launched: launches outside of the interpreter would fail on a CPU with another error."""
    launcher, args, kwargs = first_call(module, name)
    change(args, kwargs)
    with pytest.raises(ValueError, match=match):
        launcher(*args, **kwargs)


def put(position: int, make):
    def change(args, kwargs):
        args[position] = make(args[position])

    return change


@pytest.mark.parametrize(
    "position, make, match",
    [
        (0, lambda c: c.half(), "mla_cache_write: c has dtype torch.float16, allowed is"),
        (0, lambda c: c[:, :100], "fp8_ds_mla allows multiples of 128"),
        (1, lambda k: k.double(), "k_pe has dtype torch.float64"),
        (1, lambda k: k.repeat(1, 2)[:, ::2], "k_pe has strides"),
        (2, lambda s: s.int(), "slot_mapping has dtype torch.int32"),
        (2, lambda s: s[:-1], "slot_mapping has shape"),
        (3, lambda c: replace(c, kv=c.kv[:, :32]), "cache.kv has shape"),
        (3, lambda c: replace(c, kv_dtype="int4"), "kv_dtype is 'int4', allowed are float32"),
    ],
)
def test_mla_cache_write_refuses(position, make, match):
    refused("paths.kernels.mla_cache_write", "fp8_ds_mla/63 rows, bf16", put(position, make), match)


@pytest.mark.parametrize(
    "position, make, match",
    [
        (0, lambda k: k.half(), "k has dtype"),
        (0, lambda k: k[:, :64], "cache.index has shape"),
        (2, lambda c: replace(c, index=None), "cache.index is None"),
        (2, lambda c: replace(c, index=c.index[:, :100]), "cache.index has shape"),
    ],
)
def test_index_k_write_refuses(position, make, match):
    refused("paths.kernels.index_k_write", "fp8/63 rows, bf16", put(position, make), match)


def test_rotation_of_48_values_is_refused():
    def rotate(args, kwargs):
        kwargs["hadamard"] = True

    refused("paths.kernels.index_k_write", "fp8/5 rows of 48", rotate, "hadamard with 48 values")


def test_index_q_prepare_refuses():
    name = "fp8/63 rows, bf16"
    refused("paths.kernels.index_q_prepare", name, put(0, lambda q: q.flatten(1)), "q has shape")
    refused("paths.kernels.index_q_prepare", name, put(1, lambda w: w[:, :2]), "w has shape")


def test_fused_operations_refuse():
    norm, q = "paths.dsa_mrv2.kernels.fused_norm_rope", "paths.dsa_mrv2.kernels.fused_q"
    refused(
        norm, "narrow/7 rows", put(0, lambda x: x[:, :90]), "projected has 90 columns, allowed are at least"
    )
    refused(
        norm,
        "narrow/7 rows",
        put(3, lambda b: replace(b, positions=b.positions.int())),
        "positions has dtype",
    )
    refused(norm, "narrow/7 rows", put(1, lambda n: replace(n, index_bias=None)), "index_bias is None")
    refused(q, "narrow/7 rows", put(0, lambda x: x[:, :90]), "projected has 90 columns")
    refused(q, "narrow/7 rows", put(0, lambda x: x.bfloat16()), "projected has dtype torch.bfloat16")
    refused(q, "narrow/7 rows", put(3, lambda p: p[:3]), "positions has shape")


@pytest.mark.parametrize(
    "changes, match",
    [
        ({"n_group": 5}, "n_group is 5, allowed are divisors of 32"),
        ({"topk_group": 9}, "topk_group is 9, allowed are 1 to 8"),
        ({"top_k": 13}, "top_k is 13, allowed are 1 to 12"),
    ],
)
def test_moe_route_refuses(changes, match):
    refused("paths.kernels.moe_route", "groups/63 rows", lambda _, kwargs: kwargs.update(changes), match)


def test_moe_experts_and_sort_refuse():
    experts = partial(refused, "paths.kernels.moe_experts", "bf16/63 rows")
    experts(put(3, lambda w: w.float()), "w13 has dtype torch.float32")
    experts(put(3, lambda w: w.transpose(1, 2)), "w13 has shape")
    experts(put(1, lambda ids: ids.long()), "ids has dtype torch.int64")
    refused(
        "paths.kernels.moe_sort",
        "uniform/63 rows",
        lambda _, kwargs: kwargs.update(tile=24),
        "tile is 24, allowed are 16, 32, 64, 128",
    )


def test_padding_rows_choose_nobody_and_disturb_nobody():
    """Rows of NaN with the id −1 come out as 0; live rows have the bits that they have alone."""
    assert_passes("""
import torch
from paths.kernels.moe_experts.triton_impl import moe_experts
g = torch.Generator().manual_seed(5)
x, ids = torch.randn(9, 64, generator=g), torch.randint(0, 4, (9, 2), generator=g).int()
w13, w2 = torch.randn(4, 96, 64, generator=g), torch.randn(4, 64, 48, generator=g)
weights = torch.rand(9, 2, generator=g)
x[3::4], ids[3::4] = torch.nan, -1
padded = moe_experts(x, ids, weights, w13, w2)
live = (ids >= 0).all(1)
assert not padded[~live].any() and padded[live].isfinite().all()
alone = moe_experts(x[live], ids[live], weights[live], w13, w2)
assert torch.equal(padded[live], alone)
assert torch.equal(padded, moe_experts(x, ids, weights, w13, w2))
""")


def test_a_row_of_nan_routes_inside_the_experts_and_alone():
    assert_passes("""
import torch
from paths.kernels.moe_route.triton_impl import moe_route
g = torch.Generator().manual_seed(6)
x, gate = torch.randn(5, 40, generator=g), torch.randn(16, 40, generator=g)
bias = torch.randn(16, generator=g)
rule = dict(n_group=4, topk_group=2, top_k=4, norm=True, scaling=2.5)
weights, ids = moe_route(x, gate, bias, **rule)
x[2] = torch.nan
other_weights, other_ids = moe_route(x, gate, bias, **rule)
assert len(set(other_ids[2].tolist())) == 4 and 0 <= other_ids[2].min() and other_ids[2].max() < 16
keep = torch.tensor([0, 1, 3, 4])
assert torch.equal(ids[keep], other_ids[keep]) and torch.equal(weights[keep], other_weights[keep])
""")


def test_topk_rows_are_reset_only_where_the_layer_ranks():
    """With an indexer and a row that sees more keys than columns; rows behind the batch stay."""
    assert_passes("""
import torch
from dataclasses import replace
from paths.dsa_mrv2.kernels.fused_norm_rope.cases import OTHERS, make_call
from paths.dsa_mrv2.kernels.fused_norm_rope.triton_impl import fused_norm_rope
def rows_after(shape, max_length):
    call = make_call(torch.Generator().manual_seed(1), torch.device("cpu"), rows=7, shape=OTHERS[shape])
    batch = replace(call.args[3], max_length=max_length)
    fused_norm_rope(*call.args[:3], batch, call.args[4], **call.kwargs)
    return batch.topk_indices
ranked = rows_after("narrow", 25)
assert (ranked[:7] == -1).all() and (ranked[7:] == 7).all()
assert (rows_after("narrow", 24) == 7).all()
assert (rows_after("shared indexer", 25) == 7).all()
""")
