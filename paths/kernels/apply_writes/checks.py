"""Index checks of apply_writes for `debug.checks=true`."""

from __future__ import annotations

from torch import Tensor

from paths.kernels.guards import refuse_outside


def check_indices(state: Tensor, writes: Tensor, values: Tensor, *, longest: int) -> None:
    """Raises ValueError for words that state or values do not have; a negative target is padding."""
    live = writes[writes[:, 0] >= 0]
    refuse_outside("apply_writes", "count", live[:, 2], low=0, high=longest + 1)
    refuse_outside("apply_writes", "first word", live[:, 1], low=0, high=len(values) + 1)
    refuse_outside("apply_writes", "last word", live[:, 1] + live[:, 2], low=0, high=len(values) + 1)
    refuse_outside("apply_writes", "end", live[:, 0] + live[:, 2], low=0, high=len(state) + 1)
