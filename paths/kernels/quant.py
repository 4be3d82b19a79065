"""fp8 quantization with power-of-two scales, and the Hadamard rotation in front of it."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from paths.kernels.layouts import E4M3

E4M3_MAX = 448.0
AMAX_FLOOR = 1e-4  # of a zero block: scale 2^-22, never 0


def ue8m0_scale(amax: Tensor) -> Tensor:
    """Smallest power of two ≥ max(amax, 1e-4) / 448, float32, found by the exponent bits.

    A float32 log2 misjudges values one ulp above a power of two; the bits do not. A NaN or infinite amax
    gives an infinite scale, which makes NaN of the block on reading.
    """
    bits = (amax.float().clamp(min=AMAX_FLOOR) / E4M3_MAX).view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).int()
    return (exponent.clamp(max=255) << 23).view(torch.float32)


def to_e4m3(x: Tensor) -> Tensor:
    """Round to nearest even, saturating at ±448; NaN stays NaN. Clamped, for some casts overflow to NaN."""
    return x.float().clamp(-E4M3_MAX, E4M3_MAX).to(E4M3)


def quantize_block(x: Tensor) -> tuple[Tensor, Tensor]:
    """One block over the last axis: e4m3 `[..., n]` and its float32 scale `[...]`, x ≈ e4m3 × scale."""
    scale = ue8m0_scale(x.float().abs().amax(-1))
    return to_e4m3(x.float() / scale[..., None]), scale


def hadamard(x: Tensor) -> Tensor:
    """x · H / sqrt(n) over the last axis in float32; orthogonal and its own inverse. n is a power of two."""
    return x.float() @ hadamard_matrix(x.shape[-1]).to(x.device)


@lru_cache(maxsize=8)
def hadamard_matrix(size: int) -> Tensor:
    """Sylvester's matrix with entries (-1)^popcount(i & j), divided by sqrt(size). Raises ValueError."""
    if size < 1 or size & (size - 1):
        raise ValueError(f"Hadamard rotation needs a power of two, got {size}: switch hadamard off")
    entries = [[-1.0 if (i & j).bit_count() % 2 else 1.0 for j in range(size)] for i in range(size)]
    return torch.tensor(entries) / size**0.5
