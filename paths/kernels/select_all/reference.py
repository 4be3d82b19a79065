"""The definition of select_all."""

from __future__ import annotations

from torch import Tensor


def select_all(lengths: Tensor, *, out: Tensor) -> None:
    """lengths int32 `[T]`, at most k each; fills out int32 `[T, k]` with 0 … length − 1, then −1."""
    for t, length in enumerate(lengths.tolist()):
        for j in range(out.shape[1]):
            out[t, j] = j if j < length else -1
