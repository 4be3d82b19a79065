"""The definition of topk: sort a row's scores by (score descending, index ascending)."""

from __future__ import annotations

import torch
from torch import Tensor


def topk(
    scores: Tensor, lengths: Tensor, k: int, *, ordered: bool = True, out: Tensor | None = None
) -> Tensor:
    """scores float32 `[T, N]`, lengths int32 `[T]` → indices int32 `[T, k]`, −1 where there is none.

    A row of length ≤ k gets 0..length-1, then −1; of a longer one the k largest win, of equal scores the
    lower index. NaN counts as -inf, and -0 equals 0. ordered: best first, else by ascending index. Columns
    from the length on are not read. `out` is filled where it is given.
    """
    result = torch.full((scores.shape[0], k), -1, dtype=torch.int32)
    for t, length in enumerate(lengths.clamp(min=0).tolist()):
        if length <= k:
            result[t, :length] = torch.arange(length)
            continue
        clean = [-float("inf") if score != score else score for score in scores[t, :length].tolist()]
        best = sorted(range(length), key=lambda i: (-clean[i], i))[:k]
        result[t] = torch.tensor(best if ordered else sorted(best))
    return result if out is None else out.copy_(result)
