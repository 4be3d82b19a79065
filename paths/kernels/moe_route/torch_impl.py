"""moe_route for any device and for torch.compile."""

from __future__ import annotations

import torch
from torch import Tensor

from paths.kernels.moe_route.reference import WEIGHT_SUM_FLOOR


def moe_route(
    x: Tensor,
    gate: Tensor,
    bias: Tensor,
    *,
    n_group: int,
    topk_group: int,
    top_k: int,
    norm: bool,
    scaling: float,
) -> tuple[Tensor, Tensor]:
    """x `[T, D]`, gate float32 `[E, D]`, bias float32 `[E]` → weights float32, ids int32 `[T, top_k]`."""
    scores = torch.sigmoid(torch.nn.functional.linear(x.float(), gate))
    biased = scores + bias
    if n_group > 1:
        grouped = biased.unflatten(-1, (n_group, -1))
        kept = _rank(grouped.topk(2, dim=-1).values.sum(-1)) < topk_group
        biased = grouped.masked_fill(~kept[..., None], -torch.inf).flatten(-2)
    # topk leaves the order of ties open, a stable sort does not
    ids = torch.sort(biased, dim=-1, descending=True, stable=True).indices[:, :top_k]
    weights = scores.gather(-1, ids)
    if norm:
        weights = weights / weights.sum(-1, keepdim=True).clamp(min=WEIGHT_SUM_FLOOR)
    return weights * scaling, ids.int()


def _rank(values: Tensor) -> Tensor:
    """Place of each value in its row, 0 the largest, ties to the lower column. Quadratic: for short rows."""
    mine, other = values[..., :, None], values[..., None, :]
    column = torch.arange(values.shape[-1], device=values.device)
    earlier = column[None, :] < column[:, None]
    return ((other > mine) | ((other == mine) & earlier)).sum(-1)
