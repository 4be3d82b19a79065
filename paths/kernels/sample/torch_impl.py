"""sample in vectorised torch."""

from __future__ import annotations

import torch
from torch import Tensor

from paths.kernels.sample.noise import gumbel_noise

MASS_ONE = 2.0**40  # probability masses are summed in fixed point: no order of summation changes the kept set


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
    """See the reference."""
    logits = finite_or_infinite(logits)
    greedy = logits.argmax(dim=-1)
    if all_greedy:
        return greedy
    if rows is not None:
        temperature, top_k, top_p, seeds = (t[rows.long()] for t in (temperature, top_k, top_p, seeds))
    is_greedy = temperature == 0
    kept = mask_top_k_top_p(scale(logits, temperature), top_k=top_k, top_p=top_p)
    noise = gumbel_noise(seeds=seeds, positions=positions, vocab_size=logits.shape[1])
    return torch.where(is_greedy, greedy, (kept + noise).argmax(dim=-1))


def finite_or_infinite(logits: Tensor) -> Tensor:
    """NaN becomes −inf, so that it never wins."""
    return torch.nan_to_num(logits, nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)


def scale(logits: Tensor, temperature: Tensor) -> Tensor:
    """logits / temperature, rows of temperature 0 as they are."""
    return logits / torch.where(temperature == 0, 1.0, temperature)[:, None]


def mask_top_k_top_p(logits: Tensor, *, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Logits [N, V] without NaN, with everything outside the kept set at −inf.

    top-k first, then top-p over what is left: the smallest set of most likely tokens whose probability
    reaches top_p; the most likely token is always kept. Equal logits are ordered by id.
    """
    vocab_size = logits.shape[1]
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(vocab_size, device=logits.device)
    outside = rank >= torch.where(top_k > 0, top_k, vocab_size)[:, None]
    mass = (relative_weight(ordered, ordered[:, :1]) * MASS_ONE).long().masked_fill(outside, 0)
    before = mass.cumsum(dim=-1) - mass
    limit = (mass.sum(dim=-1).double() * top_p.double()).ceil().long().clamp(min=1)[:, None]
    drop = (before >= limit) & (top_p < 1)[:, None]
    ordered = ordered.masked_fill(outside | drop, -torch.inf)
    return torch.empty_like(logits).scatter_(1, order, ordered)


def relative_weight(logits: Tensor, largest: Tensor) -> Tensor:
    """exp(logits − largest); 1 at the largest, be it infinite."""
    return torch.where(logits == largest, 1.0, torch.exp(logits - largest))
