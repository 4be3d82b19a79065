"""Dense products of few rows on a CPU against torch's."""

from __future__ import annotations

import pytest
import torch

from paths.generic_mrv1.products import Products, products_of
from paths.kernels.registry import Kernels
from tests.model_driver import CPU

ROWS = [0, 1, 3, 16, 17, 63, 64, 65]  # up to 16, or 64 in bfloat16, are multiplied here
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.05}


def values(*shape, dtype, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.fixture(scope="module")
def ours():
    return products_of(Kernels(CPU, "cpp"))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("columns", "inner"), [(1, 63), (100, 128), (111, 100)])
def test_linear(ours, rows, columns, inner, dtype):
    wide = values(rows, inner + 5, dtype=dtype)
    x, w = wide[:, :inner], values(columns, inner, dtype=dtype, seed=1)  # a slice, as a projection's part is
    torch.testing.assert_close(
        ours.linear(x, w), Products().linear(x, w), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * 10
    )


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rows", ROWS)
def test_products_of_heads(ours, rows, dtype):
    limits = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype] * 10}
    q = values(rows, 3, 63 + 11, dtype=dtype)[:, :, :63]
    w_uk = values(3, 63, 111, dtype=dtype, seed=1)
    absorbed = ours.absorb_query(q, w_uk)
    torch.testing.assert_close(absorbed, Products().absorb_query(q, w_uk), **limits)
    out, w_uv = values(rows, 3, 111, dtype=dtype, seed=2), values(3, 100, 111, dtype=dtype, seed=3)
    expanded = ours.expand_value(out, w_uv)
    torch.testing.assert_close(expanded, Products().expand_value(out, w_uv), **limits)
    assert absorbed.is_contiguous() and expanded.is_contiguous(), "the compiler was told so"


@pytest.mark.parametrize("name", ["linear", "absorb_query", "expand_value"])
def test_what_the_compiler_is_told_is_what_comes_back(ours, name):
    shapes = {"linear": ((5, 64), (32, 64)), "absorb_query": ((5, 2, 64), (2, 64, 96))}
    x, w = shapes.get(name, ((5, 2, 96), (2, 64, 96)))
    op = getattr(ours, name)
    torch.library.opcheck(
        op,
        (values(*x, dtype=torch.float32), values(*w, dtype=torch.float32)),
        test_utils=("test_schema", "test_faketensor"),
    )


def test_shapes_that_do_not_fit_are_refused(ours):
    with pytest.raises(RuntimeError, match="linear: x has 3 columns, w 4"):
        ours.linear(torch.zeros(1, 3), torch.zeros(2, 4))
    with pytest.raises(RuntimeError, match="absorb_query"):
        ours.absorb_query(torch.zeros(1, 2, 3), torch.zeros(3, 3, 4))
    with pytest.raises(RuntimeError, match="expand_value"):
        ours.expand_value(torch.zeros(1, 2, 3), torch.zeros(2, 4, 4))


def test_without_cpp_kernels_products_are_those_of_torch():
    assert products_of(Kernels(CPU, "torch")) == Products()
