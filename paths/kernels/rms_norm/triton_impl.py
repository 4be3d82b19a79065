"""rms_norm in Triton, one row per program, held in registers between the sum and the product.

Bytes: every value of x is read once and every value of the output written once, 2 × T × D × size. The weight,
4 × D bytes, is read by every row, from L2 after the first.
"""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from paths.kernels.casting import cast_to
from paths.kernels.compile_specs import META, CompileSpec, of_cases, traced
from paths.kernels.launching import launch
from paths.kernels.row_tiles import row_tiles
from paths.kernels.tensors import check_tensor

OP = "rms_norm"
FLOATS = (torch.float32, torch.bfloat16)


@triton.jit
def normalized(values, weight, lane, inside, width, eps):
    """values float32 `[BLOCK]`, zero outside → values / rms × weight."""
    mean = tl.sum(values * values, axis=0) / width
    scale = 1.0 / tl.sqrt(mean + eps)
    return values * scale * tl.load(weight + lane, mask=inside, other=0.0)


@triton.jit
def rms_norm_kernel(x, weight, out, stride, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    inside = lane < width
    values = tl.load(x + row * stride + lane, mask=inside, other=0.0).to(tl.float32)
    result = normalized(values, weight, lane, inside, width, eps)
    tl.store(out + row * width + lane, cast_to(result, out.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x `[T, D]` with any row stride, weight float32 `[D]` → contiguous `[T, D]`. Raises ValueError."""
    check_tensor(OP, "x", x, dtype=FLOATS, shape=(None, None), contiguous=False)
    rows, width = x.shape
    check_tensor(OP, "weight", weight, dtype=torch.float32, shape=(width,))
    out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    launch(rms_norm_kernel, (rows,), x, weight, out, x.stride(0), width, eps, config=row_tiles(width))
    return out


def compile_specs() -> list[CompileSpec]:
    """Rows of both models: hidden, query latent, key latent."""
    from paths.kernels.rms_norm.cases import check_cases

    specs = of_cases(OP, rms_norm, check_cases())
    for label, width in (
        ("V3.2 hidden", 7168),
        ("V3.2 query latent", 1536),
        ("GLM-5.2 hidden", 6144),
        ("GLM-5.2 query latent", 2048),
        ("key latent", 512),
    ):
        x = torch.empty(8, width, dtype=torch.bfloat16, device=META)
        run = partial(rms_norm, x, torch.empty(width, device=META), 1e-6)
        specs += traced(OP, f"{label} {width}", run)
    return specs
