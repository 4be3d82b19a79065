"""moe_sort for any device; waits for none."""

from __future__ import annotations

import torch
from torch import Tensor

from paths.kernels.moe_sort.reference import num_tiles


def moe_sort(ids: Tensor, *, num_experts: int, tile: int) -> tuple[Tensor, Tensor]:
    """ids int32 `[T, K]` → rows int32 `[P, tile]`, experts int32 `[P]`."""
    capacity = num_tiles(ids.numel(), num_experts=num_experts, tile=tile)
    flat = ids.flatten().long()
    flat = torch.where((flat >= 0) & (flat < num_experts), flat, num_experts)  # nobody's: behind all others
    counts = flat.new_zeros(num_experts + 1).scatter_add(0, flat, torch.ones_like(flat))
    tiles = (counts[:num_experts] + tile - 1) // tile
    ends = tiles.cumsum(0)
    order = flat.argsort(stable=True)
    expert = flat[order]
    first = torch.cat([counts.new_zeros(1), counts.cumsum(0)])[expert]
    start = torch.cat([(ends - tiles) * tile, ends.new_full((1,), capacity * tile)])[expert]
    place = start + torch.arange(len(flat), device=ids.device) - first
    place = torch.where(expert < num_experts, place, capacity * tile)
    rows = torch.full((capacity * tile + 1,), -1, dtype=torch.int32, device=ids.device)
    rows[place] = order.int()
    number = torch.arange(capacity, device=ids.device)
    owner = torch.searchsorted(ends, number, right=True)
    experts = torch.where(number < ends[-1], owner, -1).int()
    return rows[:-1].view(capacity, tile), experts
