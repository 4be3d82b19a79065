"""The definition of count_nan_rows."""

from __future__ import annotations

import math

from torch import Tensor


def count_nan_rows(logits: Tensor, *, total: Tensor) -> None:
    """logits float32 or bf16 `[N, V]`; adds the number of rows that hold a NaN to total int64 `[1]`."""
    for row in logits.tolist():
        total += any(math.isnan(value) for value in row)
