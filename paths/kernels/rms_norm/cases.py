"""Check cases of rms_norm: odd row counts and widths, slices of wider rows, and a row with a NaN."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from paths.kernels.cases import Call, Case, Tolerance, close, randn, rows_far_apart

ROWS = (0, 1, 63, 64, 65, 100, 111)
DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16}
# Sums in another order: a few float32 steps; in bf16 that may be the other of two neighbours.
CLOSE: dict[torch.dtype, Tolerance] = {
    torch.float32: close(1e-5, 1e-6),
    torch.bfloat16: close(2.0**-7, 1e-6),
}


def check_cases() -> list[Case]:
    return [
        *(
            Case(f"{name}/{rows} rows of {width}", partial(_make, dtype=dtype, rows=rows, width=width))
            for name, dtype in DTYPES.items()
            for rows, width in [*((rows, 64) for rows in ROWS), (5, 1), (5, 100), (3, 1536)]
        ),
        *(
            Case(f"{name}/7 rows in a wider one", partial(_make, dtype=dtype, rows=7, width=72, wide=200))
            for name, dtype in DTYPES.items()
        ),
        Case("bf16/3 rows far apart", partial(_make, dtype=torch.bfloat16, rows=3, width=8, far=True)),
        Case("bf16/65 rows of 7168", partial(_make, dtype=torch.bfloat16, rows=65, width=7168), slow=True),
    ]


def draw_rows(
    generator: torch.Generator,
    rows: int,
    width: int,
    *,
    wide: int = 0,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """Rows of many magnitudes, the last one with a NaN; `wide`: cut out of rows of that width full of NaN."""
    scale = 10.0 ** torch.randint(-3, 4, (rows, 1), generator=generator)
    values = (randn(generator, rows, width, device=torch.device("cpu")) * scale).to(dtype)
    if rows > 1:
        values[-1, 0] = torch.nan
    if not wide:
        return values.to(device)
    around = torch.full((rows, wide), torch.nan, dtype=dtype)
    around[:, 8 : 8 + width] = values
    return around.to(device)[:, 8 : 8 + width]


def _make(
    generator: torch.Generator,
    device: torch.device,
    *,
    dtype: torch.dtype,
    rows: int,
    width: int,
    wide: int = 0,
    far: bool = False,
) -> Call:
    x = draw_rows(generator, rows, width, wide=wide, dtype=dtype, device=device)
    if far:
        x = rows_far_apart(rows, width, dtype, device).copy_(x)
    weight = randn(generator, width, device=device)
    return Call((x, weight, 1e-5), {}, lambda out: {"out": out}, {"out": CLOSE[dtype]})
