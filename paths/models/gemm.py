"""What dense products can do on a device."""

from __future__ import annotations

import torch
from torch import Tensor


def writes_float32(x: Tensor) -> bool:
    """Whether a product of x can be written in float32 at once, without a second pass over the result."""
    return x.is_cuda and x.dtype is torch.bfloat16 and torch.version.hip is None
