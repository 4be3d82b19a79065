"""Check cases of index_q_prepare: odd row and head counts, queries and weights cut from wider rows."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from paths.kernels.cases import Call, Case, close, exact, randn, rows_far_apart
from paths.kernels.index_k_write.cases import INDEX_DTYPES, ROTATED
from paths.kernels.mla_cache_write.cases import ROWS, SOURCES, draw_rows

WEIGHTS = close(1e-6, 0.0)  # the constant factors may be multiplied in another order


def check_cases() -> list[Case]:
    plain = [
        Case(
            f"{dtype}/{rows} rows, {source}",
            partial(_make, index_dtype=dtype, rows=rows, source=source, heads=3 if rows > 1 else 64),
        )
        for dtype in INDEX_DTYPES
        for rows in ROWS
        for source in ["bf16" if rows % 2 else "float32"]
    ]
    shapes = [
        Case(
            f"{dtype}/5 rows, {heads} heads of {dim}{', hadamard' if hadamard else ''}",
            partial(
                _make, index_dtype=dtype, rows=5, source="float32", heads=heads, dim=dim, hadamard=hadamard
            ),
        )
        for dtype in INDEX_DTYPES
        for heads, dim, hadamard in ((17, 48, False), (32, 128, True), (16, 32, True))
    ]
    far = [
        Case(
            "fp8/rows far apart",
            partial(_make, index_dtype="fp8", rows=4, source="bf16", heads=2, dim=32, far=True),
        )
    ]
    slow = [
        Case(
            f"{dtype}/200 rows of 64 heads",
            partial(_make, index_dtype=dtype, rows=200, source="bf16", heads=64),
            slow=True,
        )
        for dtype in INDEX_DTYPES
    ]
    return plain + shapes + far + slow


def _make(
    generator: torch.Generator,
    device: torch.device,
    *,
    index_dtype: str,
    rows: int,
    source: str,
    heads: int,
    dim: int = 128,
    hadamard: bool = False,
    far: bool = False,
) -> Call:
    dtype = SOURCES[source]
    if hadamard:  # one magnitude: the error of a sum is relative to its largest term
        q = randn(generator, rows, heads, dim, device=device, dtype=dtype)
    else:
        q = draw_rows(generator, rows, heads * dim, dtype=dtype, device=device).unflatten(1, (heads, dim))
    if far:
        q = rows_far_apart(rows, heads * dim, dtype, device).copy_(q.flatten(1)).unflatten(1, (heads, dim))

    def outputs(result: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        prepared, weights = result
        if not hadamard:
            return {"q": prepared, "weights": weights}
        # a query and its scale can only be judged together once the sums differ in the last bit
        share = weights / w.float() * (heads * dim) ** 0.5 if index_dtype == "fp8" else 1.0 + 0.0 * weights
        return {"q": prepared.float() * share[..., None]}

    w = draw_rows(generator, rows, heads, dtype=dtype, device=device)
    if hadamard:
        w = randn(generator, rows, heads, device=device, dtype=dtype).exp()
        return Call(
            (q, w),
            {"index_dtype": index_dtype, "hadamard": True},
            outputs,
            {"q": ROTATED[index_dtype]},
        )
    return Call(
        (q, w),
        {"index_dtype": index_dtype, "hadamard": False},
        outputs,
        {"q": exact(), "weights": WEIGHTS},
    )
