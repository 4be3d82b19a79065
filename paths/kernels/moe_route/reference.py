"""The definition of moe_route, one token at a time in float32."""

from __future__ import annotations

import torch
from torch import Tensor

WEIGHT_SUM_FLOOR = 1e-20  # of a token whose selected sigmoids all underflow


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
    """x `[T, D]`, gate float32 `[E, D]`, bias float32 `[E]` → weights float32, ids int32, both `[T, top_k]`.

    The bias decides the selection and never the weights. A group's score is the sum of its two best biased
    scores; the other groups are out at -inf. Ties go to the lower id.
    """
    weights = torch.zeros(x.shape[0], top_k)
    ids = torch.zeros(x.shape[0], top_k, dtype=torch.int32)
    for t in range(x.shape[0]):
        scores = torch.sigmoid(gate @ x[t].float())
        biased = (scores + bias).tolist()
        size = len(biased) // n_group
        groups = [sum(sorted(biased[g * size : (g + 1) * size])[-2:]) for g in range(n_group)]
        kept = set(_best(groups, topk_group))
        chosen = _best([b if e // size in kept else -float("inf") for e, b in enumerate(biased)], top_k)
        picked = scores[chosen]
        if norm:
            picked = picked / picked.sum().clamp(min=WEIGHT_SUM_FLOOR)
        weights[t], ids[t] = picked * scaling, torch.tensor(chosen, dtype=torch.int32)
    return weights, ids


def _best(values: list[float], count: int) -> list[int]:
    return sorted(range(len(values)), key=lambda i: (-values[i], i))[:count]
