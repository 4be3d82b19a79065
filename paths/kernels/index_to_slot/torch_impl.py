"""index_to_slot for any device."""

from __future__ import annotations

import torch
from torch import Tensor

from paths.engine.batch import PAGE_SIZE


def index_to_slot(indices: Tensor, req_rows: Tensor, block_table: Tensor) -> Tensor:
    """indices int32 `[T, k]` → slots int64 `[T, k]`, −1 where there is none."""
    used = indices >= 0
    safe = torch.where(used, indices, 0)
    # an unused entry must not look into the table: a padding row's request may not exist
    rows = torch.where(used, req_rows[:, None], 0).long()
    blocks = block_table[rows, safe // PAGE_SIZE].long()
    return torch.where(used, blocks * PAGE_SIZE + safe % PAGE_SIZE, -1)
