"""topk for any device, all rows at once."""

from __future__ import annotations

import torch
from torch import Tensor


def topk(
    scores: Tensor, lengths: Tensor, k: int, *, ordered: bool = True, out: Tensor | None = None
) -> Tensor:
    """scores float32 `[T, N]`, lengths int32 `[T]` → indices int32 `[T, k]`, −1 where there is none.

    Score and column are packed in one integer, so that no two keys are equal and the order is fixed.
    """
    rows, width = scores.shape
    lengths = lengths.clamp(min=0)[:, None]
    columns = torch.arange(k, dtype=torch.int32, device=scores.device)
    result = torch.where(columns < lengths, columns, -1)
    if rows and width > k:
        column = torch.arange(width, device=scores.device)
        # adding zero turns -0 into +0
        clean = torch.where((column < lengths) & ~scores.isnan(), scores + 0.0, -torch.inf)
        bits = clean.view(torch.int32)
        rank = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long() << 32
        # a column behind the length loses to a -inf inside
        packed = torch.where(column < lengths, rank + (0x7FFFFFFF - column), torch.iinfo(torch.int64).min)
        best = packed.topk(k, dim=-1).indices.int()
        result = torch.where(lengths > k, best if ordered else best.sort(-1).values, result)
    return result if out is None else out.copy_(result)
