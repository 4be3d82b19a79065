"""Index checks of moe_experts for debug.checks=true."""

from __future__ import annotations

from torch import Tensor

from paths.kernels.guards import refuse_outside


def check_indices(x: Tensor, ids: Tensor, weights: Tensor, w13: Tensor, w2: Tensor) -> None:
    """Raises ValueError for an expert that there is not; −1 is nobody's and allowed."""
    refuse_outside("moe_experts", "ids", ids, low=-1, high=w13.shape[0])
