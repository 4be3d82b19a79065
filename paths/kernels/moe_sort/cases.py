"""Check cases of moe_sort: odd row counts, empty and crowded experts, padding rows, one expert for all."""

from __future__ import annotations

from functools import partial

import torch

from paths.kernels.cases import Call, Case, exact

ROWS = (0, 1, 63, 64, 65, 100, 111)


def check_cases() -> list[Case]:
    return [
        *(
            Case(f"uniform/{rows} rows", partial(_make, rows=rows, experts=8, chosen=3, tile=16))
            for rows in ROWS
        ),
        Case("tiles/of 32", partial(_make, rows=111, experts=5, chosen=2, tile=32)),
        Case("tiles/of 64", partial(_make, rows=100, experts=3, chosen=2, tile=64)),
        Case("tiles/of 128", partial(_make, rows=150, experts=3, chosen=1, tile=128)),
        Case("crowded/one of 9 experts", partial(_make, rows=65, experts=9, chosen=2, tile=16, used=1)),
        Case("crowded/most of 33 empty", partial(_make, rows=7, experts=33, chosen=2, tile=16)),
        Case("single/1 expert", partial(_make, rows=100, experts=1, chosen=1, tile=64)),
        Case("padding/a third of the rows", partial(_make, rows=100, experts=8, chosen=3, tile=16, padded=3)),
        Case("padding/all rows", partial(_make, rows=5, experts=8, chosen=3, tile=16, padded=1)),
        Case(
            "long/several blocks of ids",
            partial(_make, rows=1000, experts=6, chosen=3, tile=128, padded=7),
        ),
        Case("V3.2/4000 rows", partial(_make, rows=4000, experts=257, chosen=9, tile=128), slow=True),
    ]


def _make(
    generator: torch.Generator,
    device: torch.device,
    *,
    rows: int,
    experts: int,
    chosen: int,
    tile: int,
    used: int | None = None,
    padded: int | None = None,
) -> Call:
    """Every `padded`-th row has no expert; only the last `used` experts are chosen."""
    ids = torch.randint(experts - (used or experts), experts, (rows, chosen), generator=generator).int()
    if padded is not None:
        ids[padded - 1 :: padded] = -1
    return Call(
        args=(ids.to(device),),
        kwargs={"num_experts": experts, "tile": tile},
        outputs=lambda result: {"rows": result[0], "experts": result[1]},
        tolerance={"rows": exact(), "experts": exact()},
    )
