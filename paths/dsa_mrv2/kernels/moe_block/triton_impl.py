"""moe_block and gated_mlp in Triton.

moe_block is the router, which adds the shared experts to every row's choices, and the grouped GEMM over all
of them. gated_mlp is two dense GEMMs of the vendor's library around one kernel.
"""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional

from paths.dsa_mrv2.kernels.arguments import MoeBlock
from paths.kernels.casting import cast_to
from paths.kernels.compile_specs import META, CompileSpec, of_cases, traced
from paths.kernels.launching import TileConfig, launch
from paths.kernels.moe_experts.triton_impl import MATRIX_KERNELS, moe_experts
from paths.kernels.moe_route.triton_impl import route_with_shared
from paths.kernels.tensors import check_tensor

OP = "moe_block"
FLOATS = (torch.float32, torch.bfloat16)
TILES = TileConfig(num_warps=4, num_stages=1, tiles={"BLOCK": 1024})


def moe_block(x: Tensor, block: MoeBlock) -> Tensor:
    """x `[T, Dm]` → routed experts weighted by the router, plus the shared ones with weight 1.

    Raises ValueError.
    """
    _check_block(x, block)
    experts, shared = block.gate.shape[0], block.w13.shape[0] - block.gate.shape[0]
    if shared < 0:
        raise ValueError(
            f"{OP}: block.w13 has {block.w13.shape[0]} experts, allowed are at least the gate's {experts}"
        )
    weights, ids = route_with_shared(
        x,
        block.gate,
        block.bias,
        n_group=block.n_group,
        topk_group=block.topk_group,
        top_k=block.top_k,
        norm=block.norm,
        scaling=block.scaling,
        shared=shared,
    )
    return moe_experts(x, ids, weights, block.w13, block.w2)


def _check_block(x: Tensor, block: MoeBlock) -> None:
    """Raises ValueError; routing and experts would name themselves and not this op."""
    check_tensor(OP, "x", x, dtype=FLOATS, shape=(None, None), contiguous=False)
    depth = x.shape[1]
    check_tensor(OP, "block.gate", block.gate, dtype=torch.float32, shape=(None, depth), contiguous=True)
    check_tensor(OP, "block.bias", block.bias, dtype=torch.float32, shape=(block.gate.shape[0],))
    check_tensor(OP, "block.w2", block.w2, dtype=x.dtype, shape=(None, depth, None), contiguous=True)
    experts, _, width = block.w2.shape
    shape = (experts, 2 * width, depth)
    check_tensor(OP, "block.w13", block.w13, dtype=x.dtype, shape=shape, contiguous=True)


@triton.jit
def silu_mul_kernel(gate_up, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """gate_up `[T, 2 × WIDTH]` → silu(first half) × second half, BLOCK columns of one token per program."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    source = gate_up + token * (2 * WIDTH) + column
    gate = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(source + WIDTH, mask=inside, other=0.0).to(tl.float32)
    value = gate * tl.sigmoid(gate) * up
    tl.store(out + token * WIDTH + column, cast_to(value, out.dtype.element_ty), mask=inside)


def gated_mlp(x: Tensor, w13: Tensor, w2: Tensor) -> Tensor:
    """x `[T, Dm]`, w13 `[2I, Dm]` gate rows first, w2 `[Dm, I]` → `[T, Dm]`.

    The kernel between the GEMMs is memory-bound: 2 × I elements read and I written per token, each once.
    Raises ValueError.
    """
    op = "gated_mlp"
    check_tensor(op, "w2", w2, dtype=FLOATS, shape=(None, None), contiguous=False)
    width = w2.shape[1]
    check_tensor(op, "x", x, dtype=FLOATS, shape=(None, w2.shape[0]), contiguous=False)
    check_tensor(op, "w13", w13, dtype=x.dtype, shape=(2 * width, w2.shape[0]), contiguous=False)
    check_tensor(op, "w2", w2, dtype=x.dtype, shape=w2.shape, contiguous=False)
    gate_up = functional.linear(x, w13)
    hidden = x.new_empty(x.shape[0], width)
    grid = (x.shape[0], triton.cdiv(width, TILES.tiles["BLOCK"]))
    launch(silu_mul_kernel, grid, gate_up, hidden, config=TILES, WIDTH=width)
    return functional.linear(hidden, w2)


def compile_specs() -> list[CompileSpec]:
    """Both models with their shared expert, their dense layers, and all that the checks run."""
    from paths.dsa_mrv2.kernels.moe_block.cases import check_cases, weights_of

    specs = []
    for model, hidden, groups, kept, dense in (("v32", 7168, 8, 4, 18432), ("glm52", 6144, 1, 1, 12288)):
        block = weights_of(
            None,
            experts=256,
            shared=1,
            hidden=hidden,
            width=2048,
            groups=groups,
            kept=kept,
            chosen=8,
            dtype=torch.bfloat16,
            device=META,
        )
        for tokens in (64, 8192):
            x = torch.empty(tokens, hidden, dtype=torch.bfloat16, device=META)
            call = partial(moe_block, x, block)
            specs += traced(OP, f"{model}, {tokens} rows", call, matrix=MATRIX_KERNELS)
        w13 = torch.empty(2 * dense, hidden, dtype=torch.bfloat16, device=META)
        w2 = torch.empty(hidden, dense, dtype=torch.bfloat16, device=META)
        specs += traced(OP, f"{model}, dense layer", partial(gated_mlp, x, w13, w2))
    cases = check_cases()
    dense_cases = [case for case in cases if case.group == "dense"]
    specs += of_cases(OP, moe_block, [case for case in cases if case.group != "dense"])
    return specs + of_cases(OP, gated_mlp, dense_cases)
