"""Index checks of embed_norm, for `debug.checks=true`."""

from __future__ import annotations

from torch import Tensor

from paths.kernels.guards import refuse_outside


def check_indices(ids: Tensor, table: Tensor, weight: Tensor, eps: float) -> None:
    """Every id has a row in the table. Raises ValueError."""
    refuse_outside("embed_norm", "ids", ids, low=0, high=table.shape[0])
