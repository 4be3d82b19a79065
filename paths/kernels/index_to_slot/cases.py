"""Check cases of index_to_slot: permuted positions with gaps, page boundaries, blocks beyond 2^31 slots."""

from __future__ import annotations

from functools import partial

import torch

from paths.kernels.batch_cases import draw_batch, draw_selection
from paths.kernels.cases import Call, Case, exact

ROWS = (0, 1, 63, 64, 65, 100, 111)


def check_cases() -> list[Case]:
    cases = [
        Case(f"k {k}/{rows} rows", partial(_make, rows=rows, k=k))
        for rows, k in zip(ROWS, (20, 65, 20, 1, 65, 20, 65), strict=True)
    ]
    return [
        *cases,
        Case("k 2048/3 rows", partial(_make, rows=3, k=2048, length=3000)),
        Case("large blocks/65 rows", partial(_make, rows=65, k=20, first_block=2**30)),
    ]


def _make(
    generator: torch.Generator,
    device: torch.device,
    *,
    rows: int,
    k: int,
    length: int = 130,
    first_block: int = 0,
) -> Call:
    spans = [(length - rows, length), (0, 3), (63, 66)] if rows else []
    batch, _ = draw_batch(generator, spans, k=k, padding=2 if rows else 0, device=device)
    draw_selection(generator, batch, k=k)
    batch.req_rows[-2:] = 2**30  # a padding row selects nothing: its request need not exist
    return Call(
        args=(batch.topk_indices, batch.req_rows, batch.block_table + first_block),
        kwargs={},
        outputs=lambda slots: {"slots": slots},
        tolerance={"slots": exact()},
    )
