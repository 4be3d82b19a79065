"""Check cases of mask_tokens: padding, repeated entries, the first and the last logit, NaN logits."""

from __future__ import annotations

from functools import partial

import torch

from paths.kernels.cases import Call, Case, exact, randn, rows_far_apart

ENTRIES = (0, 1, 63, 64, 65, 100, 111)


def check_cases() -> list[Case]:
    cases = [
        Case(
            f"entries/{entries} in {rows} rows of {width}",
            partial(_make, entries=entries, rows=rows, width=width),
        )
        for entries, rows, width in zip(
            ENTRIES, (3, 1, 7, 2, 64, 1, 30), (9, 1, 33, 100, 1025, 20, 5), strict=True
        )
    ]
    return [
        *cases,
        Case("entries/9 in no rows", partial(_make, entries=9, rows=0, width=7)),
        Case(
            "entries/40, offsets beyond 32 bits",
            partial(_make, entries=40, rows=4, width=30, far_apart=True),
        ),
    ]


def _make(
    generator: torch.Generator,
    device: torch.device,
    *,
    entries: int,
    rows: int,
    width: int,
    far_apart: bool = False,
) -> Call:
    # a row in front and columns behind: there row −1 or token −1 would write
    around = torch.full((rows + 1, width + 3), float("nan"), device=device)
    logits = rows_far_apart(rows, width, torch.float32, device) if far_apart else around[1:, :width]
    logits.copy_(randn(generator, rows, width, device=device))
    logits[:, 0::5] = float("nan")
    row = torch.randint(-1, rows, (entries,), generator=generator, dtype=torch.int32)
    token = torch.randint(-1, width, (entries,), generator=generator, dtype=torch.int32)
    if rows and entries > 4:
        row[2], token[2] = rows - 1, width - 1
        row[3:5], token[3:5] = (0, -1)[entries % 2], 0  # twice the first logit, or twice none
    return Call(
        args=(logits, row.to(device), token.to(device)),
        kwargs={},
        outputs=lambda _: {"logits": logits, "around": around},
        tolerance={"logits": exact(), "around": exact()},
    )
