"""Check cases of add_rms_norm: odd row counts and widths, slices of wider rows, cancelling sums, a NaN."""

from __future__ import annotations

from functools import partial

import torch

from paths.kernels.cases import Call, Case, exact, randn, rows_far_apart
from paths.kernels.rms_norm.cases import CLOSE, DTYPES, ROWS, draw_rows


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
    residual = draw_rows(generator, rows, width, dtype=dtype, device=device)
    if far:
        residual = rows_far_apart(rows, width, dtype, device).copy_(residual)
    if rows > 2:
        residual[1] = -x[1]  # a sum of zeros has a norm of zeros
    weight = randn(generator, width, device=device)
    return Call(
        (x, residual, weight, 1e-5),
        {},
        lambda out: {"normed": out[0], "residual": out[1]},
        {"normed": CLOSE[dtype], "residual": exact()},
    )
