"""moe_experts in Triton: sort, grouped GEMM with SiLU·mul, grouped GEMM, weighted sum.

Nothing is added up by atomics: every choice (token, j) has its own row, and one program adds a token's rows
in order of j. The same inputs give the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from paths.kernels.casting import cast_to, dot
from paths.kernels.compile_specs import META, CompileSpec, of_cases, traced
from paths.kernels.launching import TileConfig, launch, target_of
from paths.kernels.moe_sort.triton_impl import moe_sort
from paths.kernels.tensors import check_tensor

OP = "moe_experts"
FLOATS = (torch.float32, torch.bfloat16)
MATRIX_KERNELS = ("moe_gate_up_kernel", "moe_down_kernel")
GROUP = 8  # tiles whose programs run side by side over all columns: their rows and weights stay in L2
SUM_TILES = TileConfig(num_warps=4, num_stages=1, tiles={"BLOCK": 1024})


@dataclass(frozen=True)
class ExpertTiles:
    """Tiles for steps with up to `rows` choices per expert on average (None: any number)."""

    rows: int | None
    tile: int  # rows of one expert in a tile
    gate_up: TileConfig
    down: TileConfig


def _tiles(m: int, n: int, k: int, *, warps: int, stages: int) -> TileConfig:
    return TileConfig(
        num_warps=warps, num_stages=stages, tiles={"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP": GROUP}
    )


# Few rows: the weights' bytes are the time, and the matrix instruction is mma.sync: wgmma and tcgen05 need
# 64 rows. The first product has two accumulators, so its tiles are half as wide as those of the second.
CUDA_BF16 = (
    ExpertTiles(8, 16, _tiles(16, 64, 128, warps=4, stages=4), _tiles(16, 128, 128, warps=4, stages=4)),
    ExpertTiles(24, 32, _tiles(32, 64, 128, warps=4, stages=3), _tiles(32, 128, 64, warps=4, stages=4)),
    ExpertTiles(64, 64, _tiles(64, 64, 64, warps=4, stages=4), _tiles(64, 128, 64, warps=4, stages=4)),
    ExpertTiles(None, 128, _tiles(128, 64, 64, warps=8, stages=4), _tiles(128, 128, 64, warps=8, stages=3)),
)
# 64 KiB of shared memory
HIP_BF16 = (
    ExpertTiles(8, 16, _tiles(16, 64, 64, warps=4, stages=2), _tiles(16, 64, 128, warps=4, stages=2)),
    ExpertTiles(24, 32, _tiles(32, 64, 64, warps=4, stages=2), _tiles(32, 64, 128, warps=4, stages=2)),
    ExpertTiles(64, 64, _tiles(64, 64, 64, warps=4, stages=2), _tiles(64, 128, 64, warps=4, stages=2)),
    ExpertTiles(None, 128, _tiles(128, 64, 64, warps=8, stages=2), _tiles(128, 128, 64, warps=8, stages=2)),
)
# IEEE float32 has no matrix instruction on NVIDIA: small tiles, for the operands stand in registers
FLOAT32 = (
    ExpertTiles(24, 16, _tiles(16, 32, 32, warps=4, stages=2), _tiles(16, 64, 32, warps=4, stages=2)),
    ExpertTiles(None, 64, _tiles(64, 32, 32, warps=8, stages=2), _tiles(64, 32, 32, warps=8, stages=2)),
)


@triton.jit
def place_of(tiles, COLUMNS: tl.constexpr, GROUP: tl.constexpr):
    """Tile and column block of this program: GROUP tiles over all columns, then the next GROUP tiles."""
    number = tl.program_id(0)
    group = number // (GROUP * COLUMNS)
    within = number % (GROUP * COLUMNS)
    return group * GROUP + within % GROUP, within // GROUP


@triton.jit
def moe_gate_up_kernel(
    x,
    w13,
    rows,
    experts,
    hidden,
    tiles,
    x_stride,
    DEPTH: tl.constexpr,
    WIDTH: tl.constexpr,
    CHOSEN: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """silu(x · gateᵀ) × (x · upᵀ) of one expert's tile → hidden `[T × K, WIDTH]`; DEPTH is x's width."""
    tile, column = place_of(tiles, COLUMNS, GROUP)
    if tile >= tiles:
        return
    expert = tl.load(experts + tile).to(tl.int64)
    if expert < 0:
        return
    row = tl.load(rows + tile * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    live = row >= 0
    n = column * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    source = x + (tl.where(live, row, 0) // CHOSEN)[:, None] * x_stride + k[None, :]
    gate = w13 + expert * (2 * WIDTH * DEPTH) + n[None, :] * DEPTH + k[:, None]
    up = gate + WIDTH * DEPTH
    gate_acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    up_acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    columns = (n < WIDTH)[None, :]
    for start in range(0, DEPTH, BLOCK_K):
        if DEPTH % BLOCK_K == 0 and WIDTH % BLOCK_N == 0:
            values = tl.load(source + start, mask=live[:, None], other=0.0)
            gate_acc = dot(values, tl.load(gate + start), gate_acc)
            up_acc = dot(values, tl.load(up + start), up_acc)
        else:
            inside = k < DEPTH - start
            mask = columns & inside[:, None]
            values = tl.load(source + start, mask=live[:, None] & inside[None, :], other=0.0)
            gate_acc = dot(values, tl.load(gate + start, mask=mask, other=0.0), gate_acc)
            up_acc = dot(values, tl.load(up + start, mask=mask, other=0.0), up_acc)
    activated = gate_acc * tl.sigmoid(gate_acc) * up_acc
    out = hidden + row[:, None] * WIDTH + n[None, :]
    tl.store(out, cast_to(activated, hidden.dtype.element_ty), mask=live[:, None] & columns)


@triton.jit
def moe_down_kernel(
    hidden,
    w2,
    rows,
    experts,
    partial,
    tiles,
    DEPTH: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """hidden `[T × K, DEPTH]` · downᵀ of one expert's tile → partial `[T × K, WIDTH]`."""
    tile, column = place_of(tiles, COLUMNS, GROUP)
    if tile >= tiles:
        return
    expert = tl.load(experts + tile).to(tl.int64)
    if expert < 0:
        return
    row = tl.load(rows + tile * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    live = row >= 0
    n = column * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    source = hidden + tl.where(live, row, 0)[:, None] * DEPTH + k[None, :]
    down = w2 + expert * (WIDTH * DEPTH) + n[None, :] * DEPTH + k[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    columns = (n < WIDTH)[None, :]
    for start in range(0, DEPTH, BLOCK_K):
        if DEPTH % BLOCK_K == 0 and WIDTH % BLOCK_N == 0:
            values = tl.load(source + start, mask=live[:, None], other=0.0)
            acc = dot(values, tl.load(down + start), acc)
        else:
            inside = k < DEPTH - start
            values = tl.load(source + start, mask=live[:, None] & inside[None, :], other=0.0)
            acc = dot(values, tl.load(down + start, mask=columns & inside[:, None], other=0.0), acc)
    out = partial + row[:, None] * WIDTH + n[None, :]
    tl.store(out, cast_to(acc, partial.dtype.element_ty), mask=live[:, None] & columns)


@triton.jit
def moe_sum_kernel(
    partial,
    ids,
    weights,
    out,
    WIDTH: tl.constexpr,
    CHOSEN: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Σ over j of weight × partial for one token and BLOCK columns; choices of nobody are left out unread."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    total = tl.zeros((BLOCK,), tl.float32)
    for j in tl.static_range(CHOSEN):
        choice = token * CHOSEN + j
        # as a block: the interpreter does not combine a scalar's comparison with a mask
        expert = tl.load(ids + choice) + tl.zeros((BLOCK,), tl.int32)
        live = inside & (expert >= 0) & (expert < EXPERTS)
        weight = tl.load(weights + choice)
        part = tl.load(partial + choice * WIDTH + column, mask=live, other=0.0).to(tl.float32)
        total += tl.where(live, weight * part, 0.0)
    tl.store(out + token * WIDTH + column, cast_to(total, out.dtype.element_ty), mask=inside)


def moe_experts(x: Tensor, ids: Tensor, weights: Tensor, w13: Tensor, w2: Tensor) -> Tensor:
    """x `[T, D]`, ids int32 and weights float32 `[T, K]`, w13 `[E, 2I, D]`, w2 `[E, D, I]` → `[T, D]`.

    A choice with an id outside 0..E adds nothing. The activation and each expert's output are rounded to x's
    dtype; everything else is float32.

    Few tokens are memory-bound: the 3 × D × I elements of each chosen expert are read once per tile of its
    rows, which then is one tile; hidden and partial, T × K × (I + D) elements, are written once and read once
    (hidden once per BLOCK_N columns, from cache). Raises ValueError.
    """
    check_tensor(OP, "ids", ids, dtype=torch.int32, shape=(None, None), contiguous=True)
    check_tensor(OP, "w2", w2, dtype=FLOATS, shape=(None, None, None), contiguous=True)
    tokens, chosen = ids.shape
    experts, depth, width = w2.shape
    check_tensor(OP, "x", x, dtype=FLOATS, shape=(tokens, depth), contiguous=False)
    check_tensor(OP, "weights", weights, dtype=torch.float32, shape=(tokens, chosen), contiguous=True)
    check_tensor(OP, "w13", w13, dtype=x.dtype, shape=(experts, 2 * width, depth), contiguous=True)
    check_tensor(OP, "w2", w2, dtype=x.dtype, shape=(experts, depth, width), contiguous=True)
    out = x.new_empty(tokens, depth)
    if tokens == 0:
        return out
    config = tiles_for(x, rows=tokens * chosen / experts)
    rows, owners = moe_sort(ids, num_experts=experts, tile=config.tile)
    hidden = x.new_empty(tokens * chosen, width)
    partial_out = x.new_empty(tokens * chosen, depth)
    columns = triton.cdiv(width, config.gate_up.tiles["BLOCK_N"])
    launch(
        moe_gate_up_kernel,
        (_grid(len(owners), columns),),
        x,
        w13,
        rows,
        owners,
        hidden,
        len(owners),
        x.stride(0),
        config=config.gate_up,
        DEPTH=depth,
        WIDTH=width,
        CHOSEN=chosen,
        COLUMNS=columns,
    )
    columns = triton.cdiv(depth, config.down.tiles["BLOCK_N"])
    launch(
        moe_down_kernel,
        (_grid(len(owners), columns),),
        hidden,
        w2,
        rows,
        owners,
        partial_out,
        len(owners),
        config=config.down,
        DEPTH=width,
        WIDTH=depth,
        COLUMNS=columns,
    )
    launch(
        moe_sum_kernel,
        (tokens, triton.cdiv(depth, SUM_TILES.tiles["BLOCK"])),
        partial_out,
        ids,
        weights,
        out,
        config=SUM_TILES,
        WIDTH=depth,
        CHOSEN=chosen,
        EXPERTS=experts,
    )
    return out


def tiles_for(x: Tensor, *, rows: float) -> ExpertTiles:
    """Tiles for x's dtype and device, and `rows` choices per expert on average."""
    table: tuple[ExpertTiles, ...] = FLOAT32
    if x.dtype == torch.bfloat16:
        table = HIP_BF16 if target_of(x.device).kind == "hip" else CUDA_BF16
    return next(tiles for tiles in table if tiles.rows is None or rows <= tiles.rows)


def _grid(tiles: int, columns: int) -> int:
    return triton.cdiv(tiles, GROUP) * GROUP * columns


def compile_specs() -> list[CompileSpec]:
    """Both models from decode to prefill, the shared expert among them; and all that the checks run."""
    from paths.kernels.moe_experts.cases import check_cases

    specs = []
    for model, hidden in (("v32", 7168), ("glm52", 6144)):
        for dtype in FLOATS:
            for tokens in (64, 512, 1024, 8192):
                call = partial(
                    moe_experts,
                    torch.empty(tokens, hidden, dtype=dtype, device=META),
                    torch.empty(tokens, 9, dtype=torch.int32, device=META),
                    torch.empty(tokens, 9, device=META),
                    torch.empty(257, 4096, hidden, dtype=dtype, device=META),
                    torch.empty(257, hidden, 2048, dtype=dtype, device=META),
                )
                matrix = MATRIX_KERNELS if dtype is torch.bfloat16 else ()
                specs += traced(
                    OP, f"{model}, {tokens} rows, {dtype}".replace("torch.", ""), call, matrix=matrix
                )
    return specs + of_cases(OP, moe_experts, check_cases())
