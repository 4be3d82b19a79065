"""index_q_prepare for any device."""

from __future__ import annotations

from torch import Tensor

from paths.engine.batch import torch_dtype
from paths.kernels import quant


def index_q_prepare(q: Tensor, w: Tensor, *, index_dtype: str, hadamard: bool) -> tuple[Tensor, Tensor]:
    """q `[T, nI, dI]` after RoPE, w `[T, nI]` → q' `[T, nI, dI]` and W float32 `[T, nI]`."""
    _, heads, dim = q.shape
    weights = w.float() * (heads**-0.5 * dim**-0.5)
    values = quant.hadamard(q) if hadamard else q
    if index_dtype != "fp8":
        return values.to(torch_dtype(index_dtype)), weights
    quantized, scale = quant.quantize_block(values)
    return quantized, weights * scale
