"""index_to_slot on Triton."""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from paths.engine.batch import PAGE_SIZE
from paths.kernels.compile_specs import META, CompileSpec, of_cases, traced
from paths.kernels.launching import TileConfig, launch
from paths.kernels.tensors import check_tensor

OP = "index_to_slot"
TILES = TileConfig(num_warps=4, num_stages=1, tiles={"BLOCK": 1024})


@triton.jit
def index_to_slot_kernel(
    indices_ptr,  # [T, k] int32
    req_rows_ptr,  # [T] int32
    table_ptr,  # [rows, blocks] int32
    out_ptr,  # [T, k] int64
    indices_stride,
    table_stride,
    k,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """BLOCK columns of one row."""
    t = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(indices_ptr + t * indices_stride + column, mask=column < k, other=-1)
    used = index >= 0
    table = table_ptr + tl.load(req_rows_ptr + t).to(tl.int64) * table_stride
    block = tl.load(table + index // PAGE, mask=used, other=0).to(tl.int64)
    slot = tl.where(used, block * PAGE + index % PAGE, -1)
    tl.store(out_ptr + t * k + column, slot, mask=column < k)


def index_to_slot(indices: Tensor, req_rows: Tensor, block_table: Tensor) -> Tensor:
    """indices int32 `[T, k]`, req_rows int32 `[T]`, block_table int32 `[rows, blocks]` → int64 `[T, k]`.

    Memory-bound: every index (4 bytes) is read once, its table entry (4 bytes, shared by the indices of a
    page) once, and a slot (8 bytes) written once. Raises ValueError.
    """
    check_tensor(OP, "indices", indices, dtype=torch.int32, shape=(None, None))
    tokens, k = indices.shape
    check_tensor(OP, "req_rows", req_rows, dtype=torch.int32, shape=(tokens,))
    check_tensor(OP, "block_table", block_table, dtype=torch.int32, shape=(None, None))
    out = torch.empty(tokens, k, dtype=torch.int64, device=indices.device)
    launch(
        index_to_slot_kernel,
        lambda c: (tokens, triton.cdiv(k, c["BLOCK"])),
        indices,
        req_rows,
        block_table,
        out,
        indices.stride(0),
        block_table.stride(0),
        k,
        config=TILES,
        PAGE=PAGE_SIZE,
    )
    return out


def compile_specs() -> list[CompileSpec]:
    """k 2048 of both models; and all that the checks run."""
    from paths.kernels.index_to_slot.cases import check_cases

    empty = partial(torch.empty, dtype=torch.int32, device=META)
    call = partial(index_to_slot, empty(64, 2048), empty(64), empty(64, 2048))
    return traced(OP, "v32 and glm52", call) + of_cases(OP, index_to_slot, check_cases())
