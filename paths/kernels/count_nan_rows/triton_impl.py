"""count_nan_rows on Triton."""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from paths.kernels.compile_specs import META, CompileSpec, of_cases, traced
from paths.kernels.launching import TileConfig, launch
from paths.kernels.tensors import check_tensor

OP = "count_nan_rows"
TILES = TileConfig(num_warps=8, num_stages=2, tiles={"BLOCK": 4096})
VOCABULARIES = {"v32": 129280, "glm52": 154880}


@triton.jit
def count_nan_rows_kernel(
    logits_ptr,  # [N, V] float32 or bf16
    total_ptr,  # [1] int64
    stride,
    width,
    BLOCK: tl.constexpr,
):
    """One row; sums of integers do not depend on the order in which rows arrive."""
    row = logits_ptr + tl.program_id(0).to(tl.int64) * stride
    lane = tl.arange(0, BLOCK)
    bad = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, width, BLOCK):
        x = tl.load(row + start + lane, mask=start + lane < width, other=0.0).to(tl.float32)
        bad |= (x != x).to(tl.int32)
    if tl.max(bad, axis=0) != 0:
        tl.atomic_add(total_ptr, 1, sem="relaxed")


def count_nan_rows(logits: Tensor, *, total: Tensor) -> None:
    """logits float32 or bf16 `[N, V]`; adds the number of rows that hold a NaN to total int64 `[1]`.

    Memory-bound: every logit (4 or 2 bytes) is read once. The host does not wait. Raises ValueError.
    """
    check_tensor(OP, "logits", logits, dtype=(torch.float32, torch.bfloat16), shape=(None, None))
    check_tensor(OP, "total", total, dtype=torch.int64, shape=(1,))
    rows, width = logits.shape
    launch(count_nan_rows_kernel, (rows,), logits, total, logits.stride(0), width, config=TILES)


def compile_specs() -> list[CompileSpec]:
    """Logits of both models; and all that the checks run."""
    from paths.kernels.count_nan_rows.cases import check_cases

    total = torch.empty(1, dtype=torch.int64, device=META)
    specs = []
    for model, width in VOCABULARIES.items():
        specs += traced(OP, model, partial(count_nan_rows, torch.empty(256, width, device=META), total=total))
    return [*specs, *of_cases(OP, count_nan_rows, check_cases())]
