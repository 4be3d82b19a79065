"""Check cases of the index scores: mixed requests, page boundaries, heads that fill no tile, NaN beyond."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from paths.engine.batch import PAGE_SIZE, ForwardBatch, LayerCache
from paths.kernels.batch_cases import Spans, draw_batch, fill_index, slots_of, spread
from paths.kernels.cases import Call, Case, close, randn
from paths.kernels.index_q_prepare.torch_impl import index_q_prepare
from paths.kernels.layouts import E4M3, index_views
from paths.kernels.mla_cache_write.cases import cache_of, far_apart

INDEX_DTYPES = ("float32", "bf16", "fp8")
ELEMENTS = {"float32": torch.float32, "bf16": torch.bfloat16, "fp8": E4M3}
TOLERANCE = close(1e-5, 1e-4)  # exact products, float32 sums of 128 × heads terms
SPANS: dict[str, Spans] = {
    "0 rows": [(0, 0)],
    "1 row": [(64, 65)],
    "63 rows": [(0, 60), (127, 128), (190, 192)],
    "64 rows": [(129, 193)],
    "65 rows": [(0, 1), (62, 126)],
    "100 rows": [(30, 65), (0, 65)],
    "111 rows": [(0, 111)],
    "decode of 4 requests": [(62, 63), (63, 64), (64, 65), (129, 130)],
    "4 rows each of 3 requests": [(61, 65), (126, 130), (0, 4)],
}


def check_cases() -> list[Case]:
    cases = []
    for form in ("paged", "ragged"):
        make = partial(_make, form=form)
        for number, (name, spans) in enumerate(SPANS.items()):
            for i, index_dtype in enumerate(INDEX_DTYPES):
                if number > 1 and (number + i + (form == "paged")) % 3:
                    continue  # every size with some of the formats
                heads = (16, 20, 5)[(number + i) % 3]
                drawn = partial(make, spans=spans, index_dtype=index_dtype, heads=heads)
                cases.append(Case(f"{form} {index_dtype}/{name}, {heads} heads", drawn))
        for index_dtype in INDEX_DTYPES:
            wide = partial(make, spans=[(250, 257)], index_dtype=index_dtype, heads=64)
            cases.append(Case(f"{form} {index_dtype}/7 rows, 64 heads", wide))
            small = partial(make, spans=[(0, 9), (70, 73)], index_dtype=index_dtype, heads=32, dim=32)
            cases.append(Case(f"{form} {index_dtype}/dI 32", small))
        far = partial(make, spans=[(190, 193)], index_dtype="fp8", heads=16, far=True)
        cases.append(Case(f"{form} fp8/blocks and rows far apart", far))
        long = partial(make, spans=[(4000, 4097)], index_dtype="fp8", heads=64)
        cases.append(Case(f"{form} fp8/97 rows of 4097 keys, 64 heads", long, slow=True))
    skipping = partial(_make, form="paged", spans=[(0, 100)], index_dtype="fp8", heads=16, at_least=70)
    return [*cases, Case("paged fp8/rows up to 70 left out", skipping)]


def _make(
    generator: torch.Generator,
    device: torch.device,
    *,
    form: str,
    spans: Spans,
    index_dtype: str,
    heads: int,
    dim: int = 128,
    at_least: int = 0,
    far: bool = False,
) -> Call:
    batch, blocks = draw_batch(generator, spans, k=1, padding=2, device=device)
    cache = cache_of(
        "float32", blocks=blocks, device=device, index_dtype=index_dtype, index_dim=dim, latent=16
    )
    fill_index(generator, cache, batch, spans, dim)
    q, weights = draw_query(generator, batch.num_tokens, heads, dim, index_dtype, device)
    width = batch.max_length + 5
    if far:
        cache = far_apart(cache)
        q = spread(q)
    args: tuple[Any, ...]
    if form == "paged":
        args = (q, weights, cache, batch.req_rows, batch.lengths, batch.block_table)
        lengths = torch.where(batch.lengths > at_least, batch.lengths, 0)
    else:
        keys, scales, first = gather_keys(cache, batch, spans)
        starts = first[batch.req_rows.long()]
        args = (q, weights, keys, scales, starts, starts + batch.lengths)
        lengths = batch.lengths
    seen = torch.arange(width, device=device) < lengths[:, None]
    return Call(
        args=args,
        kwargs={"width": width} | ({"at_least": at_least} if at_least else {}),
        outputs=lambda logits: {"logits": torch.where(seen, logits, 0.0)},
        tolerance={"logits": TOLERANCE},
        function="paged_mqa_logits" if form == "paged" else "mqa_logits",
    )


def draw_query(
    generator: torch.Generator, rows: int, heads: int, dim: int, index_dtype: str, device: torch.device
) -> tuple[Tensor, Tensor]:
    """q' with rows apart from each other, and weights of both signs; the last two rows are NaN."""
    q = randn(generator, rows, heads, dim, device=device)
    q[-2:] = torch.nan
    w = randn(generator, rows, heads, device=device)
    prepared, weights = index_q_prepare(q, w, index_dtype=index_dtype, hadamard=False)
    return torch.cat([prepared, prepared[..., :16]], dim=-1)[..., :dim], weights


def gather_keys(cache: LayerCache, batch: ForwardBatch, spans: Spans) -> tuple[Tensor, Tensor | None, Tensor]:
    """All requests' keys one behind the other and NaN behind them, their scales, each request's first key."""
    assert cache.index is not None, "made with an index cache"
    ends = [end for _, end in spans]
    places = torch.cat(
        [batch.block_table.new_zeros(1)[:0].long(), *(slots_of(batch, r, e) for r, e in enumerate(ends))]
    )
    places = torch.cat([places, places.new_zeros(3)])  # block 0 is NaN
    first = torch.tensor([sum(ends[:r]) for r in range(len(ends))], dtype=torch.int32, device=places.device)
    blocks, offsets = places // PAGE_SIZE, places % PAGE_SIZE
    if cache.index_dtype != "fp8":
        return cache.index[blocks, offsets], None, first
    keys, scales = index_views(cache.index)
    return keys.view(torch.uint8)[blocks, offsets].view(E4M3), scales[blocks, offsets], first


def production_paged(index_dtype: str, *, heads: int, rows: int, device: torch.device) -> dict[str, Any]:
    """Arguments of 8 requests of `rows` rows each at 32K keys; their memory holds nothing."""
    tokens = 8 * rows
    empty = partial(torch.empty, device=device)
    return {
        "q": empty(tokens, heads, 128, dtype=ELEMENTS[index_dtype]),
        "weights": empty(tokens, heads),
        "cache": cache_of("bf16", blocks=4096, device=device, index_dtype=index_dtype, index_dim=128),
        "req_rows": empty(tokens, dtype=torch.int32),
        "lengths": empty(tokens, dtype=torch.int32),
        "block_table": empty(8, 512, dtype=torch.int32),
        "width": 32768,
    }


def production_ragged(index_dtype: str, *, heads: int, device: torch.device) -> dict[str, Any]:
    """Arguments of a prefill of 4096 rows over 32K keys; their memory holds nothing."""
    empty = partial(torch.empty, device=device)
    return {
        "q": empty(4096, heads, 128, dtype=ELEMENTS[index_dtype]),
        "weights": empty(4096, heads),
        "keys": empty(32768, 128, dtype=ELEMENTS[index_dtype]),
        "scales": empty(32768) if index_dtype == "fp8" else None,
        "starts": empty(4096, dtype=torch.int32),
        "ends": empty(4096, dtype=torch.int32),
        "width": 32768,
    }
