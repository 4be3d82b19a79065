"""count_nan_rows for any device."""

from __future__ import annotations

from torch import Tensor


def count_nan_rows(logits: Tensor, *, total: Tensor) -> None:
    """logits float32 or bf16 `[N, V]`; adds the number of rows that hold a NaN to total int64 `[1]`."""
    total += logits.isnan().any(dim=-1).sum()
