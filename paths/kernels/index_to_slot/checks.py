"""Index checks of index_to_slot for debug.checks=true."""

from __future__ import annotations

from torch import Tensor

from paths.engine.batch import PAGE_SIZE
from paths.kernels.guards import refuse_outside


def check_indices(indices: Tensor, req_rows: Tensor, block_table: Tensor) -> None:
    """Raises ValueError for a request or a position that the block table does not have."""
    rows, width = block_table.shape
    refuse_outside("index_to_slot", "indices", indices.clamp(min=-1), low=-1, high=width * PAGE_SIZE)
    used = (indices >= 0).any(dim=1)
    refuse_outside("index_to_slot", "req_rows", req_rows[used], low=0, high=rows)
