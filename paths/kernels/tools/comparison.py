"""How far an implementation's outputs are from the definition's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from paths.kernels.cases import Tolerance

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Difference:
    """`worst` is the largest |actual − expected|; `excess` > 1 misses the tolerance; `fault` in words."""

    worst: float = 0.0
    excess: float = 0.0
    fault: str = ""


def compare(
    actual: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerances: Mapping[str, Tolerance]
) -> Difference:
    """The worst of all outputs; a fault is reported before a distance."""
    if set(actual) != set(expected) or set(expected) != set(tolerances):
        names = f"{sorted(actual)}, expected {sorted(expected)}, tolerances for {sorted(tolerances)}"
        return Difference(fault=f"outputs are {names}")
    found = [
        _compare_one(name, actual[name].cpu(), expected[name].cpu(), tolerances[name]) for name in expected
    ]
    broken = next((one for one in found if one.fault), None)
    return broken or max(found, key=lambda one: (one.excess, one.worst), default=Difference())


def _compare_one(name: str, actual: Tensor, expected: Tensor, tolerance: Tolerance) -> Difference:
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        came, wanted = (f"{list(t.shape)} {t.dtype}" for t in (actual, expected))
        return Difference(fault=f"{name}: is {came}, expected {wanted}")
    nan = _is_nan(expected)
    if not torch.equal(_is_nan(actual), nan):
        count = int((_is_nan(actual) != nan).sum())
        return Difference(
            fault=f"{name}: {count} values are NaN on one side only{_first(_is_nan(actual) != nan)}"
        )
    a, e = actual.double(), expected.double()
    infinite = e.isinf() | a.isinf()
    if not torch.equal(a[infinite], e[infinite]):
        return Difference(fault=f"{name}: infinities differ{_first(infinite & (a != e))}")
    ordinary = ~(nan | infinite)
    error = torch.where(ordinary, (a - e).abs(), 0.0)
    worst = float(error.max()) if error.numel() else 0.0
    if tolerance.is_exact:
        differs = ordinary & (_bits(actual) != _bits(expected))
        if differs.any():
            count = int(differs.sum())
            return Difference(worst, float("inf"), f"{name}: {count} values differ{_first(differs)}")
        return Difference()
    limit = tolerance.atol + tolerance.rtol * torch.where(ordinary, e.abs(), 0.0)
    excess = torch.where(error > 0, error / limit, 0.0)
    largest = float(excess.max()) if excess.numel() else 0.0
    fault = f"{name}: off by {worst:.3g}{_first(excess > 1)}" if largest > 1 else ""
    return Difference(worst, largest, fault)


def _is_nan(tensor: Tensor) -> Tensor:
    return (
        tensor.float().isnan()
        if tensor.dtype.is_floating_point
        else torch.zeros_like(tensor, dtype=torch.bool)
    )


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(_INTEGERS[tensor.element_size()])


def _first(where: Tensor) -> str:
    return f", first at {where.nonzero()[0].tolist()}"
