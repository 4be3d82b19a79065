"""Check cases of count_nan_rows: a NaN at either end of a row, infinities, NaN outside of the rows."""

from __future__ import annotations

from functools import partial

import torch

from paths.kernels.cases import Call, Case, exact, randn, rows_far_apart

ROWS = (0, 1, 63, 64, 65, 100, 111)
EARLIER = 2**33 + 5  # what was counted before: more than 32 bits hold


def check_cases() -> list[Case]:
    cases = [
        Case(f"{name}/{rows} rows of {width}", partial(_make, rows=rows, width=width, dtype=dtype))
        for rows, width in zip(ROWS, (7, 1, 256, 100, 33, 1025, 64), strict=True)
        for name, dtype in (("float32", torch.float32), ("bf16", torch.bfloat16))
    ]
    return [
        *cases,
        Case("float32/offsets beyond 32 bits", partial(_make, rows=4, width=30, far_apart=True)),
        Case("float32/2 rows of 9000", partial(_make, rows=2, width=9000)),
        Case("float32/production: 8 rows of 129280", partial(_make, rows=8, width=129280), slow=True),
    ]


def _make(
    generator: torch.Generator,
    device: torch.device,
    *,
    rows: int,
    width: int,
    dtype: torch.dtype = torch.float32,
    far_apart: bool = False,
) -> Call:
    # what stands between the rows is NaN, and counts for none of them
    logits = torch.full((rows, width + 3), float("nan"), dtype=dtype, device=device)[:, :width]
    if far_apart:
        logits = rows_far_apart(rows, width, dtype, device)
    logits.copy_(randn(generator, rows, width, device=device))
    logits[0::3, 0] = float("nan")
    logits[1::4, -1] = float("nan")
    logits[2::3, width // 2] = float("-inf")
    total = torch.full((1,), EARLIER, dtype=torch.int64, device=device)
    return Call(
        args=(logits,),
        kwargs={"total": total},
        outputs=lambda _: {"total": total},
        tolerance={"total": exact()},
    )
