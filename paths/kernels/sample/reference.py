"""sample, as its definition: one row after the other, on Python numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_WORD = (1 << 64) - 1


def sample(
    logits: Tensor,
    *,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
    all_greedy: bool,
    rows: Tensor | None = None,
) -> Tensor:
    """Token ids int64 `[N]` from float32 logits `[N, V]`. Ties go to the lowest id; NaN never wins.

    temperature float32 (0 is greedy), top_k int32 (0 is off), top_p float32 (1 is off), seeds int64, all
    `[S]`; row n takes entry rows[n], or entry n without `rows`. positions int64 `[N]`: position of the new
    token. all_greedy: known on the host, no row draws.
    """
    logits = torch.nan_to_num(logits, nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    tokens = []
    for n, row in enumerate(logits):
        entry = n if rows is None else int(rows[n])
        if all_greedy or temperature[entry] == 0:
            scores = row
        else:
            scaled = row / temperature[entry]
            noise = gumbel_row(int(seeds[entry]), int(positions[n]), range(len(row)))
            kept = kept_tokens(scaled, top_k=int(top_k[entry]), top_p=float(top_p[entry]))
            scores = torch.full_like(row, -torch.inf)
            scores[kept] = scaled[kept] + noise[kept]
        tokens.append(scores.tolist().index(float(scores.max())))
    return torch.tensor(tokens, dtype=torch.int64, device=logits.device)


def kept_tokens(scaled: Tensor, *, top_k: int, top_p: float) -> Tensor:
    """Ids that survive top-k, then top-p, best first.

    top-p keeps the smallest set of most likely tokens whose probability reaches top_p, never none. Equal
    logits are ordered by id.
    """
    values = scaled.tolist()
    order = sorted(range(len(values)), key=lambda i: (-values[i], i))
    order = order[: top_k if top_k > 0 else None]
    if top_p < 1 and values[order[0]] < math.inf:
        probs = scaled[order].double().softmax(0)
        before = probs.cumsum(0) - probs
        order = order[: max(1, int((before < top_p).sum()))]
    elif top_p < 1:  # infinite logits share the whole probability
        infinite = [i for i in order if values[i] == math.inf]
        order = infinite[: max(1, math.ceil(top_p * len(infinite)))]
    return torch.tensor(order)


def gumbel_row(seed: int, position: int, tokens: Sequence[int]) -> Tensor:
    """Standard Gumbel noise float32 of one row's tokens."""
    key = row_key(seed, position)
    bits = (mix(key + token * 0xD1B54A32D192ED03) >> 12 for token in tokens)
    uniform = torch.tensor([(2 * b + 1) * 2.0**-53 for b in bits], dtype=torch.float64)
    return -torch.log(-torch.log(uniform)).float()


def accept_uniform(seed: int, position: int) -> float:
    """Uniform in [0, 1) that decides on the draft at `position`: the noise of token −1."""
    return (mix(row_key(seed, position) - 0xD1B54A32D192ED03) >> 11) * 2.0**-53


def row_key(seed: int, position: int) -> int:
    return mix(mix(seed) + position * 0x9E3779B97F4A7C15)


def mix(x: int) -> int:
    """splitmix64's finaliser on 64-bit words."""
    x &= _WORD
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _WORD
    return x ^ (x >> 31)
