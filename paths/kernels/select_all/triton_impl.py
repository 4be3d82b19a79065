"""select_all on Triton."""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from paths.kernels.compile_specs import META, CompileSpec, of_cases, traced
from paths.kernels.launching import TileConfig, launch
from paths.kernels.tensors import check_tensor

OP = "select_all"
TILES = TileConfig(num_warps=4, num_stages=1, tiles={"BLOCK": 1024})


@triton.jit
def select_all_kernel(
    lengths_ptr,  # [T] int32
    out_ptr,  # [T, k] int32
    out_stride,
    k,
    BLOCK: tl.constexpr,
):
    """BLOCK columns of one row."""
    t = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    selected = tl.where(column < tl.load(lengths_ptr + t), column, -1)
    tl.store(out_ptr + t * out_stride + column, selected, mask=column < k)


def select_all(lengths: Tensor, *, out: Tensor) -> None:
    """lengths int32 `[T]`; fills out int32 `[T, k]` with 0 … length − 1, then −1.

    Memory-bound: every entry (4 bytes) is written once. Raises ValueError.
    """
    check_tensor(OP, "lengths", lengths, dtype=torch.int32, shape=(None,))
    tokens = len(lengths)
    check_tensor(OP, "out", out, dtype=torch.int32, shape=(tokens, None))
    k = out.shape[1]
    launch(
        select_all_kernel,
        lambda c: (tokens, triton.cdiv(k, c["BLOCK"])),
        lengths,
        out,
        out.stride(0),
        k,
        config=TILES,
    )


def compile_specs() -> list[CompileSpec]:
    """k 2048 of both models; and all that the checks run."""
    from paths.kernels.select_all.cases import check_cases

    empty = partial(torch.empty, dtype=torch.int32, device=META)
    call = partial(select_all, empty(8192), out=empty(8192, 2048))
    return traced(OP, "v32 and glm52", call) + of_cases(OP, select_all, check_cases())
