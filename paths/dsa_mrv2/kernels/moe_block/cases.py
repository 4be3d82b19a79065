"""Check cases of moe_block and gated_mlp: odd row counts, 0 to 2 shared experts, groups or none."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from paths.dsa_mrv2.kernels.arguments import MoeBlock
from paths.kernels.cases import Call, Case, close, randn
from paths.kernels.mla_cache_write.cases import SOURCES
from paths.kernels.moe_route.cases import is_clear

ROWS = (0, 1, 63, 65, 111)
# the routed weights sum to 2.5: the rounding of each expert's output in bf16 grows with them
TOLERANCE = {"float32": close(1e-4, 1e-4), "bf16": close(4e-2, 8e-2)}


def check_cases() -> list[Case]:
    routed = [
        Case(f"{source}/{rows} rows", partial(_make, rows=rows, source=source))
        for source in SOURCES
        for rows in ROWS
    ]
    shared = [
        Case(
            f"{source}/{shared} shared",
            partial(_make, rows=20, source=source, shared=shared, groups=1, kept=1),
        )
        for source in SOURCES
        for shared in (0, 2)
    ]
    dense = [
        Case(f"dense/{rows} rows, {source}", partial(_make_dense, rows=rows, source=source))
        for source in SOURCES
        for rows in (0, 1, 64, 100)
    ]
    wide = partial(_make, rows=3, source="bf16", hidden=7168, width=2048, experts=16)
    return [*routed, *shared, *dense, Case("V3.2/3 rows", wide, slow=True)]


def weights_of(
    generator: torch.Generator | None,
    *,
    experts: int,
    shared: int,
    hidden: int,
    width: int,
    groups: int,
    kept: int,
    chosen: int,
    dtype: torch.dtype,
    device: torch.device,
) -> MoeBlock:
    """Random weights; without a generator only their shapes mean something."""

    def draw(*shape: int, scale: float = 1.0) -> Tensor:
        if generator is None:
            return torch.empty(shape, device=device)
        return randn(generator, *shape, device=device) * scale

    total = experts + shared
    return MoeBlock(
        gate=draw(experts, hidden, scale=hidden**-0.5),
        bias=draw(experts, scale=0.3),
        w13=draw(total, 2 * width, hidden, scale=hidden**-0.5).to(dtype),
        w2=draw(total, hidden, width, scale=width**-0.5).to(dtype),
        n_group=groups,
        topk_group=kept,
        top_k=chosen,
        norm=True,
        scaling=2.5,
    )


def _make(
    generator: torch.Generator,
    device: torch.device,
    *,
    rows: int,
    source: str,
    experts: int = 8,
    shared: int = 1,
    hidden: int = 64,
    width: int = 48,
    groups: int = 4,
    kept: int = 2,
    chosen: int = 2,
) -> Call:
    """Rows whose selection does not hang on the last bits of a sum."""
    block = weights_of(
        generator,
        experts=experts,
        shared=shared,
        hidden=hidden,
        width=width,
        groups=groups,
        kept=kept,
        chosen=chosen,
        dtype=SOURCES[source],
        device=device,
    )
    x = torch.zeros(0, hidden, dtype=SOURCES[source], device=device)
    while x.shape[0] < rows:
        drawn = randn(generator, rows + 8, hidden, device=device, dtype=SOURCES[source])
        clear = is_clear(drawn, block.gate, block.bias, groups=groups, kept=kept, chosen=chosen)
        x = torch.cat([x, drawn[clear]])
    return Call(
        args=(x[:rows].contiguous(), block),
        kwargs={},
        outputs=lambda out: {"out": out},
        tolerance={"out": TOLERANCE[source]},
    )


def _make_dense(generator: torch.Generator, device: torch.device, *, rows: int, source: str) -> Call:
    draw, dtype = partial(randn, generator, device=device), SOURCES[source]
    return Call(
        args=(
            draw(rows, 64).to(dtype),
            (draw(2 * 1104, 64) / 8.0).to(dtype),
            (draw(64, 1104) / 1104**0.5).to(dtype),
        ),
        kwargs={},
        outputs=lambda out: {"out": out},
        tolerance={"out": TOLERANCE[source]},
        function="gated_mlp",
    )
