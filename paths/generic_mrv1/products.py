"""The dense products of the generic model: torch's own, and on a CPU opaque ops that are quick for few rows.

A bf16 product of oneDNN costs 15 to 80 µs however few its rows are, and a decode step has few. What runs on a
GPU is torch's product in the compiled graph.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.library import register_fake

from paths.kernels.cpp import CppUnavailable, load_operators
from paths.kernels.registry import Kernels
from paths.models.mla import absorb_query, expand_value

NAMESPACE = "dsa_generic_cpu"
Product = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Products:
    """linear: x `[T, D]`, w `[N, D]` → `[T, N]`. The other two as in `paths.models.mla`."""

    linear: Product = F.linear
    absorb_query: Product = absorb_query
    expand_value: Product = expand_value


def products_of(kernels: Kernels) -> Products:
    """Opaque ops where the engine's kernels are C++; torch's products, with a note, where there is none."""
    if "cpp" not in kernels.implementations.values():
        return Products()
    try:
        operators = _load()
    except CppUnavailable as error:
        kernels.notes.append(f"dense products: torch instead of C++, {error}")
        return Products()
    return Products(
        linear=operators.linear.default,
        absorb_query=operators.absorb_query.default,
        expand_value=operators.expand_value.default,
    )


@cache  # an op's shapes can be registered once per process
def _load() -> Any:
    operators = load_operators(NAMESPACE, Path(__file__).parent)

    @register_fake(operators.linear.default.name())
    def _(x: Tensor, w: Tensor) -> Tensor:
        return x.new_empty(x.shape[0], w.shape[0])

    @register_fake(operators.absorb_query.default.name())
    def _(q_nope: Tensor, w_uk: Tensor) -> Tensor:
        return q_nope.new_empty(q_nope.shape[0], w_uk.shape[0], w_uk.shape[2])

    @register_fake(operators.expand_value.default.name())
    def _(out: Tensor, w_uv: Tensor) -> Tensor:
        return out.new_empty(out.shape[0], w_uv.shape[0], w_uv.shape[1])

    return operators
