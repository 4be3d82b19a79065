"""The definition of rope, one pair at a time."""

from __future__ import annotations

from torch import Tensor


def rope(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, *, interleaved: bool) -> Tensor:
    """x `[T, H, R]`, tables float32 `[P, R / 2]`, positions `[T]` → `[T, H, R]` in x's dtype.

    Interleaved rotates the pairs (2i, 2i + 1), half-split the pairs (i, i + R / 2); both keep the order. The
    rotation is done in float32.
    """
    half = x.shape[-1] // 2
    out = x.float().clone()
    for t, position in enumerate(positions.tolist()):
        for i in range(half):
            first, second = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
            c, s = cos[position, i], sin[position, i]
            a, b = x[t, :, first].float(), x[t, :, second].float()
            out[t, :, first] = a * c - b * s
            out[t, :, second] = a * s + b * c
    return out.to(x.dtype)
