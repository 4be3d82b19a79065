"""Check cases of embed_norm: odd counts of tokens, repeated ids, first and last row, NaN in unused rows."""

from __future__ import annotations

from functools import partial

import torch

from paths.kernels.cases import Call, Case, exact, randn, rows_far_apart
from paths.kernels.rms_norm.cases import CLOSE, DTYPES, ROWS

VOCABULARY = 97


def check_cases() -> list[Case]:
    return [
        *(
            Case(f"{name}/{rows} tokens of {width}", partial(_make, dtype=dtype, rows=rows, width=width))
            for name, dtype in DTYPES.items()
            for rows, width in [*((rows, 64) for rows in ROWS), (5, 100), (3, 1536)]
        ),
        *(
            Case(
                f"{name}/7 tokens, padded table",
                partial(_make, dtype=dtype, rows=7, width=72, wide=80),
                skip={"cpp": "takes a contiguous table"},
            )
            for name, dtype in DTYPES.items()
        ),
        Case(
            "bf16/3 tokens of a table beyond 2^31",
            partial(_make_far, dtype=torch.bfloat16),
            skip={"cpp": "takes a contiguous table"},
        ),
        Case("bf16/65 tokens of 7168", partial(_make, dtype=torch.bfloat16, rows=65, width=7168), slow=True),
    ]


def _make(
    generator: torch.Generator,
    device: torch.device,
    *,
    dtype: torch.dtype,
    rows: int,
    width: int,
    wide: int = 0,
) -> Call:
    table = randn(generator, VOCABULARY, max(width, wide), device=device, dtype=dtype)
    table[:, width:] = torch.nan
    ids = torch.randint(0, VOCABULARY, (rows,), generator=generator)
    if rows > 2:
        ids[:3] = torch.tensor([VOCABULARY - 1, 0, 0])
    unused = torch.ones(VOCABULARY, dtype=torch.bool)
    unused[ids] = False
    table[unused.to(device)] = torch.nan
    weight = randn(generator, width, device=device)
    return Call(
        (ids.to(device), table[:, :width], weight, 1e-5),
        {},
        lambda out: {"embedding": out[0], "normed": out[1]},
        {"embedding": exact(), "normed": CLOSE[dtype]},
    )


def _make_far(generator: torch.Generator, device: torch.device, *, dtype: torch.dtype) -> Call:
    table = rows_far_apart(3, 8, dtype, device).copy_(randn(generator, 3, 8, device=device, dtype=dtype))
    ids = torch.tensor([2, 0, 1], device=device)
    return Call(
        (ids, table, randn(generator, 8, device=device), 1e-5),
        {},
        lambda out: {"embedding": out[0], "normed": out[1]},
        {"embedding": exact(), "normed": CLOSE[dtype]},
    )
