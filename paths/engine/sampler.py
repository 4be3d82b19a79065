"""From logits to tokens. Noise is a pure function of (seed, position, token), so a request draws the same
tokens whatever else is in the batch, and a preempted request draws them again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class SamplingInputs:
    """One row per logits row."""

    temperature: Tensor  # [N] float32, 0 is greedy
    top_k: Tensor  # [N] int32, 0 is off
    top_p: Tensor  # [N] float32, 1 is off
    seeds: Tensor  # [N] int64
    positions: Tensor  # [N] int64: position that the new token will have
    all_greedy: bool  # known on the host, so that the common case costs one argmax


def sample(logits: Tensor, inputs: SamplingInputs) -> Tensor:
    """Token ids [N] int64 from float32 logits [N, V]. Ties go to the lowest id; NaN never wins."""
    logits = torch.nan_to_num(logits, nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    greedy = logits.argmax(dim=-1)
    if inputs.all_greedy:
        return greedy
    is_greedy = inputs.temperature == 0
    scaled = logits / torch.where(is_greedy, 1.0, inputs.temperature)[:, None]
    kept = mask_top_k_top_p(scaled, top_k=inputs.top_k, top_p=inputs.top_p)
    noise = gumbel_noise(seeds=inputs.seeds, positions=inputs.positions, vocab_size=logits.shape[1])
    return torch.where(is_greedy, greedy, (kept + noise).argmax(dim=-1))


def mask_top_k_top_p(logits: Tensor, *, top_k: Tensor, top_p: Tensor) -> Tensor:
    """Logits [N, V] with everything outside the kept set at −inf.

    top-k first, then top-p over what is left: the smallest set of most likely tokens whose probability
    reaches top_p; the most likely token is always kept. Equal logits are ordered by id.
    """
    vocab_size = logits.shape[1]
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(vocab_size, device=logits.device)
    limit = torch.where(top_k > 0, top_k, vocab_size)[:, None]
    ordered = ordered.masked_fill(rank >= limit, -torch.inf)
    probs = ordered.softmax(dim=-1)
    before = probs.cumsum(dim=-1) - probs
    # top_p ≥ 1 must keep all, although a rounded cumulative sum may reach 1 early
    drop = (before >= top_p[:, None]) & (top_p < 1)[:, None] & (rank > 0)
    ordered = ordered.masked_fill(drop, -torch.inf)
    return torch.empty_like(logits).scatter_(1, order, ordered)


def gumbel_noise(*, seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Standard Gumbel noise [N, V] float32 from a counter-based generator (splitmix64 finaliser)."""
    token = torch.arange(vocab_size, dtype=torch.int64, device=seeds.device)
    row = _mix(_mix(seeds) + positions * _signed(0x9E3779B97F4A7C15))
    bits = _mix(row[:, None] + token * _signed(0xD1B54A32D192ED03))
    # 52 bits and half a step: never 0 and, rounded to double, never 1
    uniform = _shift(bits, 12).double() * 2.0**-52 + 2.0**-53
    return -torch.log(-torch.log(uniform)).float()


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    # int64 shifts are arithmetic in torch; the generator is defined on unsigned words
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word
