"""apply_writes on Triton."""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from paths.kernels.compile_specs import META, CompileSpec, of_cases, traced
from paths.kernels.launching import TileConfig, launch
from paths.kernels.tensors import check_tensor

OP = "apply_writes"
TILES = TileConfig(num_warps=4, num_stages=1, tiles={"BLOCK": 1024})


@triton.jit
def apply_writes_kernel(
    state_ptr,  # [N] int32
    writes_ptr,  # [M, 3] int32: to, first, count
    values_ptr,  # [W] int32
    BLOCK: tl.constexpr,
):
    """Grid: writes × blocks of the longest one."""
    write = writes_ptr + tl.program_id(0) * 3
    to = tl.load(write).to(tl.int64)
    first = tl.load(write + 1).to(tl.int64)
    count = tl.where(to >= 0, tl.load(write + 2), 0)
    word = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = word < count
    tl.store(state_ptr + to + word, tl.load(values_ptr + first + word, mask=live), mask=live)


def apply_writes(state: Tensor, writes: Tensor, values: Tensor, *, longest: int) -> None:
    """state int32 `[N]`, writes int32 `[M, 3]` as (to, first, count), values int32 `[W]`.

    Memory-bound: 8 bytes a word, read once and written once, and 12 a write. Raises ValueError.
    """
    check_tensor(OP, "state", state, dtype=torch.int32, shape=(None,))
    check_tensor(OP, "writes", writes, dtype=torch.int32, shape=(None, 3), contiguous=True)
    check_tensor(OP, "values", values, dtype=torch.int32, shape=(None,))
    launch(
        apply_writes_kernel,
        lambda c: (len(writes), triton.cdiv(longest, c["BLOCK"])),
        state,
        writes,
        values,
        config=TILES,
    )


def compile_specs() -> list[CompileSpec]:
    """What an engine sends, whatever the model; and all that the checks run."""
    from paths.kernels.apply_writes.cases import check_cases

    words = torch.empty(4096, dtype=torch.int32, device=META)
    writes = torch.empty(64, 3, dtype=torch.int32, device=META)
    specs = traced(OP, "any", partial(apply_writes, words, writes, words, longest=4096))
    return [*specs, *of_cases(OP, apply_writes, check_cases())]
