"""Check cases of index_topk. Scores are sums of small whole numbers: exact in any order, and full of ties."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from paths.engine.batch import ForwardBatch
from paths.kernels.batch_cases import Spans, draw_batch, slots_of
from paths.kernels.cases import Call, Case, exact
from paths.kernels.index_k_write.torch_impl import index_k_write
from paths.kernels.mla_cache_write.cases import cache_of
from paths.kernels.mqa_logits.cases import ELEMENTS, INDEX_DTYPES, production_paged

SPANS: dict[str, tuple[Spans, int]] = {
    "0 rows": ([(0, 0)], 8),
    "1 row": ([(64, 65)], 64),
    "63 rows": ([(0, 60), (64, 65), (190, 192)], 63),
    "64 rows": ([(1, 65)], 20),
    "65 rows": ([(0, 64), (127, 128)], 1),
    "100 rows": ([(0, 65), (95, 130)], 64),
    "111 rows": ([(0, 111)], 100),
    "decode around k": ([(6, 7), (7, 8), (8, 9), (63, 64), (129, 130)], 8),
    "no row drops a key": ([(40, 64), (0, 5)], 64),
    "4 rows each of 3 requests": ([(61, 65), (126, 130), (5, 9)], 8),
}


def check_cases() -> list[Case]:
    cases = [
        Case(
            f"{index_dtype}/{name}, k {k}",
            partial(_make, spans=spans, k=k, index_dtype=index_dtype, heads=(16, 5)[number % 2]),
        )
        for i, index_dtype in enumerate(INDEX_DTYPES)
        for number, (name, (spans, k)) in enumerate(SPANS.items())
        if number < 2 or (number + i) % 3 == 0  # every size with some of the formats
    ]
    for index_dtype in INDEX_DTYPES:
        small = partial(_make, spans=[(60, 70)], k=8, index_dtype=index_dtype, heads=32, dim=32)
        cases.append(Case(f"{index_dtype}/dI 32", small))
    wide = partial(_make, spans=[(2300, 2304), (4999, 5000)], k=2048, index_dtype="fp8", heads=64)
    return [*cases, Case("fp8/k 2048, 64 heads", wide, slow=True)]


def _make(
    generator: torch.Generator,
    device: torch.device,
    *,
    spans: Spans,
    k: int,
    index_dtype: str,
    heads: int,
    dim: int = 128,
) -> Call:
    batch, blocks = draw_batch(generator, spans, k=k, padding=3, device=device)
    batch.lengths[-1:] = -2  # speculative rows can get below zero
    cache = cache_of(
        "float32", blocks=blocks, device=device, index_dtype=index_dtype, index_dim=dim, latent=16
    )
    for row, (_, end) in enumerate(spans):
        keys = torch.randint(-2, 3, (end, dim), generator=generator).float()
        keys[7::29] = torch.nan  # such a key has no score, and must not win
        index_k_write(keys.to(device), slots_of(batch, row, end), cache, hadamard=False)
    q = torch.randint(-2, 3, (batch.num_tokens, heads, dim), generator=generator).float()
    weights = torch.randint(-8, 9, (batch.num_tokens, heads), generator=generator) / 8
    return Call(
        args=(q.to(device=device, dtype=ELEMENTS[index_dtype]), weights.to(device), cache, batch, k),
        kwargs={},
        # a set: implementations may differ in the order of a row
        outputs=lambda _: {"selected": batch.topk_indices.sort(dim=1).values},
        tolerance={"selected": exact()},
    )


def production_call(index_dtype: str, *, heads: int, rows: int, device: torch.device) -> dict[str, Any]:
    """Arguments of 8 requests of `rows` rows each at 32K keys; their memory holds nothing."""
    paged = production_paged(index_dtype, heads=heads, rows=rows, device=device)
    tokens = 8 * rows
    ids = torch.empty(tokens, dtype=torch.int64, device=device)
    batch = ForwardBatch(
        input_ids=ids,
        positions=ids,
        slot_mapping=ids,
        req_rows=paged["req_rows"],
        lengths=paged["lengths"],
        block_table=paged["block_table"],
        topk_indices=torch.empty(tokens, 2048, dtype=torch.int32, device=device),
        max_length=paged["width"],
    )
    return {key: paged[key] for key in ("q", "weights", "cache")} | {"batch": batch, "k": 2048}
