"""Check cases of sparse_mla: ragged batches over shuffled pages, gaps in the selection, NaN all around."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from paths.engine.batch import ForwardBatch
from paths.kernels.batch_cases import Spans, draw_batch, draw_selection, fill_kv, spread
from paths.kernels.cases import Call, Case, close, randn
from paths.kernels.mla_cache_write.cases import cache_of, far_apart

KV_DTYPES = ("float32", "bf16", "fp8", "fp8_ds_mla")
SOURCES = {"float32": torch.float32, "bf16": torch.bfloat16}
# sums of bf16 products: probabilities and the output are rounded once each
BF16, FLOAT32 = close(1e-2, 1e-2), close(1e-5, 2e-5)
SPANS: dict[int, Spans] = {
    0: [(0, 0)],
    1: [(63, 64)],
    63: [(0, 60), (64, 65), (127, 129)],
    64: [(1, 65)],
    65: [(0, 64), (191, 192)],
    100: [(0, 1), (30, 129)],
    111: [(0, 111)],
    12: [(61, 65), (126, 130), (17, 21)],  # drafts are verified: some rows of each request
}


def check_cases() -> list[Case]:
    cases = [
        _case(kv_dtype, spans, source="bf16" if (rows + i) % 2 else "float32", detail=f"{rows} rows")
        for i, kv_dtype in enumerate(KV_DTYPES)
        for number, (rows, spans) in enumerate(SPANS.items())
        if rows < 2 or (number + i) % 3 == 0  # every size with some of the formats
    ]
    cases.append(_case("bf16", [(140, 142)], source="bf16", k=90, gap=70, detail="gap before the selection"))
    cases += [
        _case(kv_dtype, [(190, 193)], source="bf16", far=True, detail="blocks and rows far apart")
        for kv_dtype in KV_DTYPES
    ]
    for kv_dtype in KV_DTYPES:
        one: dict[str, Any] = {"spans": [(299, 301), (64, 65)], "source": "bf16"}
        cases += [
            _case(kv_dtype, **one, k=200, heads=64, detail="64 heads, split over k 200"),
            _case(kv_dtype, **one, k=200, heads=17, detail="17 heads, split over k 200"),
            _case(
                kv_dtype,
                [(2100, 2101)],
                source="bf16",
                k=2048,
                heads=128,
                detail="k 2048, 128 heads",
                slow=True,
            ),
        ]
    cases += [
        _case(
            kv_dtype,
            [(0, 9), (70, 73)],
            k=8,
            source="float32",
            latent=32,
            rope=16,
            heads=4,
            detail="C 32, R 16",
        )
        for kv_dtype in KV_DTYPES
        if kv_dtype != "fp8_ds_mla"
    ]
    return cases


def _case(kv_dtype: str, spans: Spans, *, detail: str, slow: bool = False, **shape: Any) -> Case:
    make = partial(_make, kv_dtype=kv_dtype, spans=spans, **shape)
    return Case(f"{kv_dtype}/{detail}, {shape['source']}", make, slow=slow)


def _make(
    generator: torch.Generator,
    device: torch.device,
    *,
    kv_dtype: str,
    spans: Spans,
    source: str,
    k: int = 20,
    heads: int = 5,
    latent: int = 512,
    rope: int = 64,
    far: bool = False,
    gap: int = 0,
) -> Call:
    batch, blocks = draw_batch(generator, spans, k=k, padding=2, device=device)
    cache = cache_of(kv_dtype, blocks=blocks, device=device, latent=latent, rope=rope, k_scale=0.37)
    fill_kv(generator, cache, batch, spans, latent)
    cache = far_apart(cache) if far else cache
    draw_selection(generator, batch, k=k)
    batch.topk_indices[:, :gap] = -1
    q = randn(generator, batch.num_tokens, heads, latent + rope + 8, device=device, dtype=SOURCES[source])
    q[-2:] = torch.nan  # a padding row may hold anything
    if far:
        q = spread(q)
    return Call(
        args=(q[..., : latent + rope], cache, batch, k),
        kwargs={"latent": latent, "scale": 0.1},
        outputs=lambda result: {"out": result[0], "lse": result[1]},
        tolerance={"out": FLOAT32 if source == "float32" else BF16, "lse": FLOAT32},
    )


def production_call(kv_dtype: str, *, heads: int, tokens: int, device: torch.device) -> dict[str, Any]:
    """Arguments with the shapes of a decode step at 32K keys a request; their memory holds nothing."""
    blocks = 1024
    empty = partial(torch.empty, device=device)
    batch = ForwardBatch(
        input_ids=empty(tokens, dtype=torch.int64),
        positions=empty(tokens, dtype=torch.int64),
        slot_mapping=empty(tokens, dtype=torch.int64),
        req_rows=empty(tokens, dtype=torch.int32),
        lengths=empty(tokens, dtype=torch.int32),
        block_table=empty(tokens, 512, dtype=torch.int32),
        topk_indices=empty(tokens, 2048, dtype=torch.int32),
        max_length=32768,
    )
    return {
        "q": empty(tokens, heads, 576, dtype=torch.bfloat16),
        "cache": cache_of(kv_dtype, blocks=blocks, device=device),
        "batch": batch,
        "k": 2048,
        "latent": 512,
        "scale": 0.1352337788608801,
    }
