"""Check cases: arguments made afresh for every implementation, and how well its outputs must agree."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # named from Python 3.13 on


@dataclass(frozen=True)
class Tolerance:
    """|actual − expected| ≤ atol + rtol × |expected|, element by element; 0 and 0 means equal bytes."""

    rtol: float = 0.0
    atol: float = 0.0

    @property
    def is_exact(self) -> bool:
        return self.rtol == 0.0 and self.atol == 0.0


def exact() -> Tolerance:
    """Same bytes (NaN anywhere equals NaN)."""
    return Tolerance()


def close(rtol: float, atol: float) -> Tolerance:
    return Tolerance(rtol, atol)


@dataclass(frozen=True)
class Call:
    """One call of an op.

    `outputs` gets the return value and names every tensor to compare: parts of it, and caches or buffers that
    the call wrote (take those from `args`). `tolerance` has one entry per name. `function` names the callable
    where a folder has several; the op's own name otherwise.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: Callable[[Any], dict[str, Tensor]]
    tolerance: Mapping[str, Tolerance]
    function: str | None = None


@dataclass(frozen=True)
class Case:
    """`name` is `group/detail`: the check prints one row per group. `make` must draw from the generator only.

    It is called once per implementation with equal generators, so that every one of them gets its own memory.
    `skip` names implementations that cannot do this case, each with the reason, which the check prints.
    """

    name: str
    make: Callable[[torch.Generator, torch.device], Call]
    slow: bool = False
    skip: Mapping[str, str] = field(default_factory=dict)

    @property
    def group(self) -> str:
        return self.name.split("/", maxsplit=1)[0]


def randn(
    generator: torch.Generator, *shape: int, device: torch.device, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Standard normal values, drawn on the CPU so that every device gets the same ones."""
    return torch.randn(shape, generator=generator).to(device=device, dtype=dtype)


def rows_far_apart(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`[rows, width]`, rows 2^30 elements apart: from the third on, an offset in 32 bits wraps around.

    It wraps to zeros 2^31 elements in front of the first row. On a CPU the memory between the rows is neither
    touched nor reserved.
    """
    stride, start = 1 << 30, 1 << 31
    elements = start + max(rows - 1, 0) * stride + width
    if device.type == "cpu":
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
        storage = torch.frombuffer(mmap.mmap(-1, elements * dtype.itemsize, flags=flags), dtype=dtype)
    else:
        storage = torch.zeros(elements, dtype=dtype, device=device)
    return storage.as_strided((rows, width), (stride, 1), start)
