"""Check cases of moe_experts: odd row counts, every tile of the tables, empty experts, odd widths."""

from __future__ import annotations

from functools import partial

import torch

from paths.kernels.cases import Call, Case, close, randn, rows_far_apart
from paths.kernels.mla_cache_write.cases import ROWS, SOURCES

# bf16: the activation and the experts' outputs are rounded, the definition rounds once
TOLERANCE = {"float32": close(1e-4, 1e-4), "bf16": close(3e-2, 3e-2)}


def check_cases() -> list[Case]:
    rows = [
        Case(f"{source}/{rows} rows", partial(_make, rows=rows, source=source))
        for source in SOURCES
        for rows in ROWS
    ]
    tiles = [
        Case(
            f"{source}/{rows} rows of 1 expert", partial(_make, rows=rows, source=source, experts=1, chosen=1)
        )
        for source in SOURCES
        for rows in (5, 20, 40, 130)
    ]
    shapes = [
        Case(
            f"{source}/odd widths",
            partial(_make, rows=9, source=source, experts=5, hidden=72, width=40),
        )
        for source in SOURCES
    ]
    empty = [
        Case(f"{source}/most experts empty", partial(_make, rows=33, source=source, experts=32, used=2))
        for source in SOURCES
    ]
    far = [
        Case(f"{source}/3 rows far apart", partial(_make, rows=3, source=source, far=True))
        for source in SOURCES
    ]
    wide = partial(_make, rows=3, source="bf16", hidden=7168, width=2048, experts=8)
    return [*rows, *tiles, *shapes, *empty, *far, Case("V3.2/3 rows", wide, slow=True)]


def _make(
    generator: torch.Generator,
    device: torch.device,
    *,
    rows: int,
    source: str,
    experts: int = 8,
    chosen: int = 2,
    hidden: int = 64,
    width: int = 48,
    used: int | None = None,
    far: bool = False,
) -> Call:
    """x is cut from wider rows of NaN; with `used`, only the last so many experts are chosen."""
    dtype = SOURCES[source]
    draw = partial(randn, generator, device=device)
    first = experts - (used or experts)
    scores = torch.rand((rows, experts - first), generator=generator)
    ids = (first + scores.topk(chosen, dim=1).indices).int().to(device)
    wide = torch.full((rows, hidden + 16), torch.nan, dtype=dtype, device=device)
    wide[:, 8 : 8 + hidden] = draw(rows, hidden).to(dtype)
    x = wide[:, 8 : 8 + hidden]
    if far:
        x = rows_far_apart(rows, hidden, dtype, device).copy_(x)
    return Call(
        args=(
            x,
            ids,
            torch.rand((rows, chosen), generator=generator).to(device),
            (draw(experts, 2 * width, hidden) / hidden**0.5).to(dtype),
            (draw(experts, hidden, width) / width**0.5).to(dtype),
        ),
        kwargs={},
        outputs=lambda out: {"out": out},
        tolerance={"out": TOLERANCE[source]},
    )
