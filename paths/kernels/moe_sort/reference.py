"""The definition of moe_sort, expert by expert."""

from __future__ import annotations

from torch import Tensor


def moe_sort(ids: Tensor, *, num_experts: int, tile: int) -> tuple[Tensor, Tensor]:
    """ids int32 `[T, K]` → rows int32 `[P, tile]` and experts int32 `[P]` of the P tiles.

    A row is the place t × K + j of a choice. Each expert's rows stand together in rising order and fill whole
    tiles, padded with −1; tiles behind the last one hold −1 and belong to expert −1. A choice outside
    0..num_experts is nobody's. P is `num_tiles`, known without looking at the ids.
    """
    capacity = num_tiles(ids.numel(), num_experts=num_experts, tile=tile)
    flat = ids.flatten().tolist()
    rows: list[int] = []
    experts: list[int] = []
    for expert in range(num_experts):
        mine = [place for place, chosen in enumerate(flat) if chosen == expert]
        tiles = -(-len(mine) // tile)
        rows += mine + [-1] * (tiles * tile - len(mine))
        experts += [expert] * tiles
    rows += [-1] * (capacity * tile - len(rows))
    experts += [-1] * (capacity - len(experts))
    return ids.new_tensor(rows).view(capacity, tile), ids.new_tensor(experts)


def num_tiles(choices: int, *, num_experts: int, tile: int) -> int:
    """The most tiles that `choices` can fill: an expert that has any leaves at most tile − 1 places empty."""
    busy = min(choices, num_experts)
    return (choices + busy * (tile - 1)) // tile
