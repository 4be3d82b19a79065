"""Check cases of select_all: empty and full rows, buffers with rows apart, offsets beyond 32 bits."""

from __future__ import annotations

from functools import partial

import torch

from paths.kernels.cases import Call, Case, exact, rows_far_apart

ROWS = (0, 1, 63, 64, 65, 100, 111)
POISON = -(2**30)  # what the buffer holds before the call


def check_cases() -> list[Case]:
    cases = [
        Case(f"k {k}/{rows} rows", partial(_make, rows=rows, k=k))
        for rows, k in zip(ROWS, (20, 65, 1, 64, 20, 65, 20), strict=True)
    ]
    return [
        *cases,
        Case("k 2048/5 rows", partial(_make, rows=5, k=2048)),
        Case("k 2048/4 rows, offsets beyond 32 bits", partial(_make, rows=4, k=2048, far_apart=True)),
    ]


def _make(
    generator: torch.Generator, device: torch.device, *, rows: int, k: int, far_apart: bool = False
) -> Call:
    lengths = torch.randint(0, k + 1, (rows,), generator=generator, dtype=torch.int32)
    lengths[:2] = torch.tensor([k, 0], dtype=torch.int32)[:rows]  # all of the row, and a padding row
    if far_apart:
        out = rows_far_apart(rows, k, torch.int32, device)
    else:
        out = torch.empty(rows, k + 3, dtype=torch.int32, device=device)[:, :k]
    out.fill_(POISON)
    return Call(
        args=(lengths.to(device),),
        kwargs={"out": out},
        outputs=lambda _: {"selection": out},
        tolerance={"selection": exact()},
    )
