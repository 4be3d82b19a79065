"""Check cases of rope: both layouts, odd counts of rows and heads, shuffled positions, parts of heads."""

from __future__ import annotations

from functools import partial

import torch

from paths.kernels.cases import Call, Case, close, randn, rows_far_apart

ROWS = (0, 1, 63, 64, 65, 100, 111)
DTYPES = {"float32": torch.float32, "bf16": torch.bfloat16}
LAYOUTS = {"interleaved": True, "half-split": False}
POSITIONS = 300
# One product of two may be fused into the sum: a step of float32, at times of bf16.
CLOSE = {torch.float32: close(1e-6, 1e-6), torch.bfloat16: close(2.0**-7, 1e-6)}


def check_cases() -> list[Case]:
    shapes = [*((rows, 3, 16) for rows in ROWS), (2, 0, 16), (5, 1, 64), (5, 40, 64), (3, 17, 6), (3, 2, 2)]
    return [
        *(
            Case(
                f"{layout} {name}/{rows} rows, {heads} heads of {width}",
                partial(_make, dtype=dtype, shape=(rows, heads, width), interleaved=interleaved),
            )
            for layout, interleaved in LAYOUTS.items()
            for name, dtype in DTYPES.items()
            for rows, heads, width in shapes
        ),
        *(
            Case(
                f"{layout} bf16/3 rows far apart",
                partial(_make, dtype=torch.bfloat16, shape=(3, 1, 8), interleaved=interleaved, far=True),
            )
            for layout, interleaved in LAYOUTS.items()
        ),
        *(
            Case(
                f"{layout} bf16/100 rows, 128 heads of 64",
                partial(_make, dtype=torch.bfloat16, shape=(100, 128, 64), interleaved=interleaved),
                slow=True,
            )
            for layout, interleaved in LAYOUTS.items()
        ),
    ]


def _make(
    generator: torch.Generator,
    device: torch.device,
    *,
    dtype: torch.dtype,
    shape: tuple[int, int, int],
    interleaved: bool,
    far: bool = False,
) -> Call:
    rows, heads, width = shape
    # the last part of each head, as in a query: NaN stands in front of it
    around = randn(generator, rows, heads, 24 + width, device=device, dtype=dtype)
    around[..., :24] = torch.nan
    x = around[..., 24:]
    if far:
        x = rows_far_apart(rows, width, dtype, device).copy_(x[:, 0])[:, None]
    angles = torch.rand(POSITIONS, width // 2, generator=generator) * 6.28
    positions = torch.randint(0, POSITIONS, (rows,), generator=generator)
    if rows > 1:
        positions[:2] = torch.tensor([POSITIONS - 1, 0])
    return Call(
        (x, angles.cos().to(device), angles.sin().to(device), positions.to(device)),
        {"interleaved": interleaved},
        lambda out: {"out": out},
        {"out": CLOSE[dtype]},
    )
