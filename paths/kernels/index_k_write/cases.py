"""Check cases of index_k_write: odd row counts, shuffled slots over full pages, with and without rotation."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from paths.engine.batch import PAGE_SIZE, LayerCache
from paths.kernels.cases import Call, Case, close, exact
from paths.kernels.layouts import index_views
from paths.kernels.mla_cache_write.cases import (
    ROWS,
    SOURCES,
    cache_of,
    draw_rows,
    draw_slots,
    far_apart,
)

INDEX_DTYPES = ("float32", "bf16", "fp8")
# The rotation's sums may be rounded in another order: one step of the stored format, 2^-3 in e4m3.
ROTATED = {"float32": close(1e-5, 1e-5), "bf16": close(2.0**-7, 1e-5), "fp8": close(2.0**-3, 1e-3)}


def check_cases() -> list[Case]:
    plain = [
        Case(f"{dtype}/{rows} rows, {source}", partial(_make, index_dtype=dtype, rows=rows, source=source))
        for dtype in INDEX_DTYPES
        for rows in ROWS
        for source in ["bf16" if rows % 2 else "float32"]
    ]
    rotated = [
        Case(
            f"{dtype}/{rows} rows of {dim}, hadamard",
            partial(_make, index_dtype=dtype, rows=rows, source="float32", dim=dim, hadamard=True),
        )
        for dtype in INDEX_DTYPES
        for rows, dim in ((65, 128), (5, 32))
    ]
    narrow = [
        Case(f"{dtype}/5 rows of 48", partial(_make, index_dtype=dtype, rows=5, source="bf16", dim=48))
        for dtype in INDEX_DTYPES
    ]
    far = [Case("fp8/blocks far apart", partial(_make, index_dtype="fp8", rows=20, source="bf16", far=True))]
    slow = [
        Case(f"{dtype}/1000 rows", partial(_make, index_dtype=dtype, rows=1000, source="bf16"), slow=True)
        for dtype in INDEX_DTYPES
    ]
    return plain + rotated + narrow + far + slow


def stored_keys(cache: LayerCache) -> Tensor:
    """What a reader sees, float32 `[B, page, dI]`; NaN where nothing was written."""
    assert cache.index is not None
    if cache.index_dtype != "fp8":
        return cache.index.float()
    keys, scales = index_views(cache.index)
    return keys.float() * scales[..., None]


def _make(
    generator: torch.Generator,
    device: torch.device,
    *,
    index_dtype: str,
    rows: int,
    source: str,
    dim: int = 128,
    hadamard: bool = False,
    far: bool = False,
) -> Call:
    blocks = rows // PAGE_SIZE + (4 if far else 3)
    cache = cache_of("bf16", blocks=blocks, device=device, index_dtype=index_dtype, index_dim=dim)
    if far:
        cache = far_apart(cache)
    assert cache.index is not None
    index = cache.index
    k = draw_rows(generator, rows, dim, dtype=SOURCES[source], device=device)
    if hadamard:
        k = k.sign() + k.clamp(-2, 2)  # one magnitude: the error of a sum is relative to its largest term
    return Call(
        args=(k, draw_slots(generator, rows, blocks=blocks).to(device), cache),
        kwargs={"hadamard": hadamard},
        outputs=lambda _: {"keys": stored_keys(cache)} if hadamard else {"bytes": index.view(torch.uint8)},
        tolerance={"keys": ROTATED[index_dtype]} if hadamard else {"bytes": exact()},
    )
