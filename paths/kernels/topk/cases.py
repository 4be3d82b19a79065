"""Check cases of topk: scores that share coarse bins, ties, NaN, infinities, and NaN behind every row."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from paths.kernels.batch_cases import spread
from paths.kernels.cases import Call, Case, exact

ROWS = (0, 1, 63, 64, 65, 100, 111)
Draw = Callable[[torch.Generator, int], Tensor]


def normal(generator: torch.Generator, length: int) -> Tensor:
    return torch.randn(length, generator=generator)


def one_bin(generator: torch.Generator, length: int) -> Tensor:
    """Distinct in float32, all 1.0 in half precision."""
    return 1.0 + torch.randperm(length, generator=generator) * 2.0**-23


def equal(generator: torch.Generator, length: int) -> Tensor:
    return torch.full((length,), -0.25)


def few_values(generator: torch.Generator, length: int) -> Tensor:
    """Many ties, both zeros among them."""
    values = torch.tensor([-1.0, -0.0, 0.0, 1.0])
    return values[torch.randint(4, (length,), generator=generator)]


def special(generator: torch.Generator, length: int) -> Tensor:
    """NaN, infinities and subnormals: fewer finite scores than are asked for."""
    values = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e-42, -1e-42, 3.0e38])
    return values[torch.randint(6, (length,), generator=generator) * (torch.arange(length) % 3 > 0)]


def ascending(generator: torch.Generator, length: int) -> Tensor:
    return 1.0 + torch.arange(length) * 2.0**-23


def negative(generator: torch.Generator, length: int) -> Tensor:
    return -torch.rand(length, generator=generator) - 1e-3


def check_cases() -> list[Case]:
    kinds: list[Draw] = [normal, one_bin, equal, few_values, special, negative]
    cases = [
        Case(
            f"{'ordered' if ordered else 'by index'}/{rows} rows",
            partial(_ragged, rows=rows, k=k, ordered=ordered, kinds=kinds),
        )
        for ordered in (True, False)
        for rows, k in zip(ROWS, (8, 1, 64, 20, 63, 100, 65), strict=True)
        if rows in (1, 63) or not ordered  # the interpreter sorts a row in 50 ms
    ]
    long = [
        ("4000 scores in one coarse bin", ascending, 4000, 16),
        ("5000 equal scores", equal, 5000, 1500),
        ("8193 scores", normal, 8193, 2048),
        ("9000 of few values", few_values, 9000, 2048),
        ("131072 scores", normal, 131072, 2048),
    ]
    for name, draw, length, k in long:
        make = partial(_single, draw=draw, length=length, k=k, ordered=True)
        cases.append(Case(f"long/{name}", make))
    wide = partial(_single, draw=one_bin, length=131072, k=2048, ordered=False, rows=3)
    return [*cases, Case("long/3 rows of 131072 in one bin", wide, slow=True)]


def _ragged(
    generator: torch.Generator, device: torch.device, *, rows: int, k: int, ordered: bool, kinds: list[Draw]
) -> Call:
    """Lengths around 0, k and the width, one below 0."""
    width = 150
    lengths = torch.randint(-1, width + 1, (rows,), generator=generator, dtype=torch.int32)
    edges = torch.tensor([k + 1, k, k - 1, 0, -5, width, 1], dtype=torch.int32)[:rows]
    lengths[: len(edges)] = edges
    scores = torch.full((rows, width), torch.nan)
    for t, length in enumerate(lengths.clamp(min=0).tolist()):
        scores[t, :length] = kinds[t % len(kinds)](generator, length)
    return _call(scores, lengths, k, ordered, device)


def _single(
    generator: torch.Generator,
    device: torch.device,
    *,
    draw: Draw,
    length: int,
    k: int,
    ordered: bool,
    rows: int = 1,
) -> Call:
    scores = torch.full((rows, length + 7), torch.inf)  # what stands behind the length would win
    for t in range(rows):
        scores[t, :length] = draw(generator, length)
    return _call(scores, torch.full((rows,), length, dtype=torch.int32), k, ordered, device)


def _call(scores: Tensor, lengths: Tensor, k: int, ordered: bool, device: torch.device) -> Call:
    if scores.shape[0] in (1, 63):
        scores = spread(scores.to(device))
    out = torch.full((scores.shape[0], k + 3), -7, dtype=torch.int32, device=device)
    return Call(
        args=(scores.to(device), lengths.to(device), k),
        kwargs={"ordered": ordered, "out": out[:, :k]},
        outputs=lambda result: {"indices": result, "buffer": out},
        tolerance={"indices": exact(), "buffer": exact()},
    )
