"""Check cases of dense_mha: ragged requests, queries behind earlier keys, NaN behind the last key."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from paths.kernels.batch_cases import spread
from paths.kernels.cases import Call, Case, close, randn

SOURCES = {"float32": torch.float32, "bf16": torch.bfloat16}
BF16, FLOAT32 = close(1e-2, 1e-2), close(1e-5, 2e-5)
# (query rows, keys) of each request
REQUESTS: dict[str, Sequence[tuple[int, int]]] = {
    "0 rows": [],
    "1 row": [(1, 1)],
    "63 rows": [(60, 60), (3, 130)],
    "64 rows": [(64, 64)],
    "65 rows": [(1, 64), (64, 65)],
    "100 rows": [(0, 5), (35, 35), (65, 65)],
    "111 rows": [(111, 111)],
    "more queries than keys": [(9, 4), (2, 0)],
}


def check_cases() -> list[Case]:
    cases = [
        Case(f"{source}/{name}, 192 and 128 wide", partial(_make, requests=requests, source=source))
        for source in SOURCES
        for name, requests in REQUESTS.items()
    ]
    for source in SOURCES:
        wide = partial(_make, requests=[(65, 70)], source=source, heads=1, dk=256, dv=256)
        tiny = partial(_make, requests=[(17, 17), (5, 33)], source=source, heads=2, dk=40, dv=20)
        cases += [Case(f"{source}/256 wide", wide), Case(f"{source}/40 and 20 wide", tiny)]
    apart = partial(_make, requests=[(3, 4)], source="bf16", far=True)
    cases.append(Case("bf16/rows far apart", apart))
    full = partial(_make, requests=[(200, 300), (129, 129)], source="bf16", heads=16)
    return [*cases, Case("bf16/329 rows, 16 heads", full, slow=True)]


def _make(
    generator: torch.Generator,
    device: torch.device,
    *,
    requests: Sequence[tuple[int, int]],
    source: str,
    heads: int = 2,
    dk: int = 192,
    dv: int = 128,
    far: bool = False,
) -> Call:
    """Two more query rows than the requests have, and NaN keys behind the last: both belong to nobody."""
    query_starts = torch.tensor([0, *(rows for rows, _ in requests)]).cumsum(0).int()
    key_starts = torch.tensor([0, *(keys for _, keys in requests)]).cumsum(0).int()
    rows, keys = int(query_starts[-1]), int(key_starts[-1])

    def draw(count: int, spare: int, width: int) -> torch.Tensor:
        values = randn(generator, count + spare, heads, width + 8, device=device, dtype=SOURCES[source])
        values[count:] = torch.nan
        if far:
            values = spread(values)
        return values[..., :width]

    return Call(
        args=(
            draw(rows, 2, dk),
            draw(keys, 3, dk),
            draw(keys, 3, dv),
            query_starts.to(device),
            key_starts.to(device),
        ),
        kwargs={"scale": 0.1, "max_queries": max([rows for rows, _ in requests], default=0)},
        outputs=lambda result: {"out": result[0], "lse": result[1]},
        tolerance={"out": FLOAT32 if source == "float32" else BF16, "lse": FLOAT32},
    )


def production_call(*, heads: int, dk: int, dv: int, device: torch.device) -> dict[str, Any]:
    """Arguments of 4 requests of 512 rows; their memory holds nothing."""
    empty = partial(torch.empty, device=device)
    return {
        "q": empty(2048, heads, dk, dtype=torch.bfloat16),
        "k": empty(2048, heads, dk, dtype=torch.bfloat16),
        "v": empty(2048, heads, dv, dtype=torch.bfloat16),
        "query_starts": empty(5, dtype=torch.int32),
        "key_starts": empty(5, dtype=torch.int32),
        "scale": 0.1352337788608801,
        "max_queries": 512,
    }
