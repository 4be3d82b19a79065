"""Index checks of rope, for `debug.checks=true`."""

from __future__ import annotations

from torch import Tensor

from paths.kernels.guards import refuse_outside


def check_indices(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, *, interleaved: bool) -> None:
    """Every position has a row in the tables. Raises ValueError."""
    refuse_outside("rope", "positions", positions, low=0, high=cos.shape[0])
