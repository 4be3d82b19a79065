"""add_rms_norm in Triton, one row per program, the float32 sum held in registers.

Bytes: x and the residual are read once each, the normed row and the new residual written once each,
4 × T × D × size. The weight, 4 × D bytes, is read by every row, from L2 after the first.
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
from paths.kernels.rms_norm.triton_impl import FLOATS, normalized
from paths.kernels.row_tiles import row_tiles
from paths.kernels.tensors import check_tensor

OP = "add_rms_norm"


@triton.jit
def add_rms_norm_kernel(
    x, residual, weight, normed, total, x_stride, residual_stride, width, eps, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    inside = lane < width
    values = tl.load(x + row * x_stride + lane, mask=inside, other=0.0).to(tl.float32)
    values += tl.load(residual + row * residual_stride + lane, mask=inside, other=0.0).to(tl.float32)
    tl.store(total + row * width + lane, cast_to(values, total.dtype.element_ty), mask=inside)
    result = normalized(values, weight, lane, inside, width, eps)
    tl.store(normed + row * width + lane, cast_to(result, normed.dtype.element_ty), mask=inside)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x, residual `[T, D]` with any row stride → (normed, new residual), contiguous. Raises ValueError."""
    check_tensor(OP, "x", x, dtype=FLOATS, shape=(None, None), contiguous=False)
    rows, width = x.shape
    check_tensor(OP, "residual", residual, dtype=FLOATS, shape=(rows, width), contiguous=False)
    check_tensor(OP, "weight", weight, dtype=torch.float32, shape=(width,))
    normed = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    total = torch.empty((rows, width), dtype=residual.dtype, device=x.device)
    strides = (x.stride(0), residual.stride(0))
    launch(
        add_rms_norm_kernel,
        (rows,),
        x,
        residual,
        weight,
        normed,
        total,
        *strides,
        width,
        eps,
        config=row_tiles(width),
    )
    return normed, total


def compile_specs() -> list[CompileSpec]:
    """The hidden rows of both models."""
    from paths.kernels.add_rms_norm.cases import check_cases

    specs = of_cases(OP, add_rms_norm, check_cases())
    for label, width in (("V3.2 hidden", 7168), ("GLM-5.2 hidden", 6144)):
        x = torch.empty(8, width, dtype=torch.bfloat16, device=META)
        weight = torch.empty(width, device=META)
        specs += traced(OP, f"{label} {width}", partial(add_rms_norm, x, x, weight, 1e-6))
    return specs
