"""select_all for any device."""

from __future__ import annotations

import torch
from torch import Tensor


def select_all(lengths: Tensor, *, out: Tensor) -> None:
    """lengths int32 `[T]`; fills out int32 `[T, k]` with 0 … length − 1, then −1."""
    columns = torch.arange(out.shape[1], dtype=torch.int32, device=out.device)
    out.copy_(torch.where(columns < lengths[:, None], columns, -1))
