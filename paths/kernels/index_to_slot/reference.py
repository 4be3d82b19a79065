"""The definition of index_to_slot."""

from __future__ import annotations

import torch
from torch import Tensor

from paths.engine.batch import PAGE_SIZE


def index_to_slot(indices: Tensor, req_rows: Tensor, block_table: Tensor) -> Tensor:
    """indices int32 `[T, k]` (−1: none), req_rows int32 `[T]`, block_table int32 `[rows, blocks]`.

    Returns int64 `[T, k]`: block × page + offset of the position in the row's request, −1 where there is
    none.
    """
    slots = torch.full(indices.shape, -1, dtype=torch.int64)
    for t, row in enumerate(indices.tolist()):
        for j, index in enumerate(row):
            if index >= 0:
                block = int(block_table[int(req_rows[t]), index // PAGE_SIZE])
                slots[t, j] = block * PAGE_SIZE + index % PAGE_SIZE
    return slots
