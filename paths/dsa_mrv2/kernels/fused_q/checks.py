"""Index checks of fused_q for debug.checks=true."""

from __future__ import annotations

from torch import Tensor

from paths.dsa_mrv2.kernels.arguments import Rotary
from paths.kernels.guards import refuse_outside


def check_indices(
    projected: Tensor, w_uk: Tensor, rotary: Rotary, positions: Tensor, *_: object, **__: object
) -> None:
    """Raises ValueError for a position behind the RoPE tables."""
    refuse_outside("fused_q", "positions", positions, low=0, high=rotary.cos.shape[0])
