"""rope for any device and for torch.compile."""

from __future__ import annotations

import torch
from torch import Tensor


def rope(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, *, interleaved: bool) -> Tensor:
    """x `[T, H, R]`, tables float32 `[P, R / 2]`, positions `[T]` → `[T, H, R]` in x's dtype."""
    return rotate(x, cos[positions], sin[positions], interleaved=interleaved)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
    """x `[T, H, R]` by the angles whose cos and sin `[T, R / 2]` are given."""
    cos, sin = cos[:, None], sin[:, None]
    x32 = x.float()
    first, second = x32.unflatten(-1, (-1, 2)).unbind(-1) if interleaved else x32.chunk(2, dim=-1)
    pair = (first * cos - second * sin, first * sin + second * cos)
    rotated = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
    return rotated.to(x.dtype)
