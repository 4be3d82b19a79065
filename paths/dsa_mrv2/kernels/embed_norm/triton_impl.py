"""embed_norm in Triton, one token per program: the row is normed while it is in registers.

Bytes: one row of the table is read per token, the embedding and the normed row are written once each,
3 × T × Dm × size. The weight, 4 × Dm bytes, is read by every token, from L2 after the first.
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

OP = "embed_norm"


@triton.jit
def embed_norm_kernel(ids, table, weight, hidden, normed, stride, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    inside = lane < width
    # 64 bits: a table of 129,280 rows of 7168 values and more ends beyond 2^31
    source = table + tl.load(ids + row).to(tl.int64) * stride
    stored = tl.load(source + lane, mask=inside, other=0.0)
    tl.store(hidden + row * width + lane, stored, mask=inside)
    result = normalized(stored.to(tl.float32), weight, lane, inside, width, eps)
    tl.store(normed + row * width + lane, cast_to(result, normed.dtype.element_ty), mask=inside)


def embed_norm(ids: Tensor, table: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """ids int64 `[T]`, table `[V, Dm]` with any row stride, weight float32 `[Dm]`.

    Returns (embedding, normed embedding), contiguous `[T, Dm]`. Raises ValueError.
    """
    check_tensor(OP, "ids", ids, dtype=torch.int64, shape=(None,))
    check_tensor(OP, "table", table, dtype=FLOATS, shape=(None, None), contiguous=False)
    tokens, width = ids.shape[0], table.shape[1]
    check_tensor(OP, "weight", weight, dtype=torch.float32, shape=(width,))
    hidden, normed = (torch.empty((tokens, width), dtype=table.dtype, device=table.device) for _ in range(2))
    outputs = (hidden, normed)
    stride = table.stride(0)
    launch(
        embed_norm_kernel,
        (tokens,),
        ids,
        table,
        weight,
        *outputs,
        stride,
        width,
        eps,
        config=row_tiles(width),
    )
    return outputs


def compile_specs() -> list[CompileSpec]:
    """The embedding tables of both models."""
    from paths.dsa_mrv2.kernels.embed_norm.cases import check_cases

    specs = of_cases(OP, embed_norm, check_cases())
    ids = torch.empty(8, dtype=torch.int64, device=META)
    for label, vocabulary, width in (("V3.2", 129280, 7168), ("GLM-5.2", 154880, 6144)):
        table = torch.empty(vocabulary, width, dtype=torch.bfloat16, device=META)
        run = partial(embed_norm, ids, table, torch.empty(width, device=META), 1e-6)
        specs += traced(OP, f"{label} hidden {width}", run)
    return specs
