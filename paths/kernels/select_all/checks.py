"""Index checks of select_all for `debug.checks=true`."""

from __future__ import annotations

from torch import Tensor

from paths.kernels.guards import refuse_outside


def check_indices(lengths: Tensor, *, out: Tensor) -> None:
    """Raises ValueError for a row that sees more keys than its selection holds: it would lose some."""
    refuse_outside("select_all", "lengths", lengths, low=0, high=out.shape[1] + 1)
