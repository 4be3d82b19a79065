"""moe_sort in Triton: two launches, one program per expert, no atomics and so the same result every time."""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from paths.kernels.compile_specs import META, CompileSpec, of_cases, traced
from paths.kernels.launching import TileConfig, launch
from paths.kernels.moe_sort.reference import num_tiles
from paths.kernels.tensors import check_tensor

OP = "moe_sort"
TILES = TileConfig(num_warps=4, num_stages=2, tiles={"BLOCK": 1024})
ALLOWED_TILES = (16, 32, 64, 128)


@triton.jit
def moe_sort_count_kernel(ids, counts, choices, BLOCK: tl.constexpr):
    """Choices of one expert per program → counts int32 `[E]`."""
    expert = tl.program_id(0)
    seen = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, choices, BLOCK):
        place = start + tl.arange(0, BLOCK)
        seen += (tl.load(ids + place, mask=place < choices, other=-1) == expert).to(tl.int32)
    tl.store(counts + expert, tl.sum(seen))


@triton.jit
def moe_sort_kernel(
    ids,
    counts,
    rows,
    experts,
    choices,
    capacity,
    EXPERTS: tl.constexpr,
    WIDTH: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One expert's tiles per program; the last program empties the tiles that are left over."""
    expert = tl.program_id(0)
    other = tl.arange(0, WIDTH)
    tiles = (tl.load(counts + other, mask=other < EXPERTS, other=0) + TILE - 1) // TILE
    first = tl.sum(tl.where(other < expert, tiles, 0))
    if expert == EXPERTS:
        for start in range(first, capacity, BLOCK):
            tile = start + tl.arange(0, BLOCK)
            tl.store(experts + tile, tl.full((BLOCK,), -1, tl.int32), mask=tile < capacity)
        for start in range(first * TILE, capacity * TILE, BLOCK):
            place = start + tl.arange(0, BLOCK)
            tl.store(rows + place, tl.full((BLOCK,), -1, tl.int32), mask=place < capacity * TILE)
    else:
        seen = 0
        for start in range(0, choices, BLOCK):
            place = start + tl.arange(0, BLOCK)
            mine = tl.load(ids + place, mask=place < choices, other=-1) == expert
            rank = tl.cumsum(mine.to(tl.int32), 0) - 1
            tl.store(rows + first * TILE + seen + rank, place, mask=mine)
            seen += tl.sum(mine.to(tl.int32))
        end = (seen + TILE - 1) // TILE
        padding = seen + tl.arange(0, TILE)
        tl.store(rows + first * TILE + padding, tl.full((TILE,), -1, tl.int32), mask=padding < end * TILE)
        for start in range(0, end, BLOCK):
            tile = start + tl.arange(0, BLOCK)
            owner = tl.zeros((BLOCK,), tl.int32) + expert
            tl.store(experts + first + tile, owner, mask=tile < end)


def moe_sort(ids: Tensor, *, num_experts: int, tile: int) -> tuple[Tensor, Tensor]:
    """ids int32 `[T, K]` contiguous → rows int32 `[P, tile]`, experts int32 `[P]`.

    Memory-bound: every expert's program reads all T × K ids twice, 8 × E × T × K bytes that come from cache
    after the first 4 × T × K; it writes 4 × P × (tile + 1) bytes once. Raises ValueError.
    """
    check_tensor(OP, "ids", ids, dtype=torch.int32, shape=(None, None), contiguous=True)
    if tile not in ALLOWED_TILES:
        raise ValueError(f"{OP}: tile is {tile}, allowed are {', '.join(map(str, ALLOWED_TILES))}")
    if num_experts < 1:
        raise ValueError(f"{OP}: num_experts is {num_experts}, allowed is at least 1")
    choices = ids.numel()
    capacity = num_tiles(choices, num_experts=num_experts, tile=tile)
    if capacity * tile >= 2**31:
        raise ValueError(f"{OP}: {choices} choices in tiles of {tile}, allowed are fewer than 2^31 places")
    rows = ids.new_empty(capacity, tile)
    experts = ids.new_empty(capacity)
    if choices == 0:
        return rows, experts
    counts = ids.new_empty(num_experts)
    launch(moe_sort_count_kernel, (num_experts,), ids, counts, choices, config=TILES)
    launch(
        moe_sort_kernel,
        (num_experts + 1,),
        ids,
        counts,
        rows,
        experts,
        choices,
        capacity,
        config=TILES,
        EXPERTS=num_experts,
        WIDTH=triton.next_power_of_2(num_experts),
        TILE=tile,
    )
    return rows, experts


def compile_specs() -> list[CompileSpec]:
    """256 routed experts and one shared, in every tile that moe_experts uses; and all that the checks run."""
    from paths.kernels.moe_sort.cases import check_cases

    specs = []
    for experts, chosen in ((256, 8), (257, 9)):
        for tile in ALLOWED_TILES:
            ids = torch.empty(64, chosen, dtype=torch.int32, device=META)
            call = partial(moe_sort, ids, num_experts=experts, tile=tile)
            specs += traced(OP, f"v32 and glm52, {experts} experts, tiles of {tile}", call)
    return specs + of_cases(OP, moe_sort, check_cases())
