"""Index checks of sample for `debug.checks=true`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from paths.kernels.guards import refuse_outside


def check_indices(logits: Tensor, *, temperature: Tensor, rows: Tensor | None = None, **_: Any) -> None:
    """Raises ValueError for a row whose sampling parameters do not exist."""
    if rows is not None:
        refuse_outside("sample", "rows", rows, low=0, high=len(temperature))
