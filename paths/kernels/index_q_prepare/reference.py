"""The definition of index_q_prepare, one head of one token at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from paths.engine.batch import torch_dtype
from paths.kernels import quant
from paths.kernels.layouts import E4M3


def index_q_prepare(q: Tensor, w: Tensor, *, index_dtype: str, hadamard: bool) -> tuple[Tensor, Tensor]:
    """q `[T, nI, dI]` after RoPE, w `[T, nI]` → q' `[T, nI, dI]` and W float32 `[T, nI]`.

    W = w × nI^-1/2 × dI^-1/2 × s_q, where s_q is the query's quantization scale, 1 without quantization.
    """
    tokens, heads, dim = q.shape
    prepared = torch.zeros_like(q, dtype=E4M3 if index_dtype == "fp8" else torch_dtype(index_dtype))
    weights = torch.zeros(tokens, heads)
    for t in range(tokens):
        for h in range(heads):
            values = quant.hadamard(q[t, h]) if hadamard else q[t, h]
            scale = torch.tensor(1.0)
            if index_dtype == "fp8":
                prepared[t, h], scale = quant.quantize_block(values)
            else:
                prepared[t, h] = values.to(prepared.dtype)
            weights[t, h] = w[t, h].float() * heads**-0.5 * dim**-0.5 * scale
    return prepared, weights
