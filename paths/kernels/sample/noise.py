"""The noise of sampling: a pure function of (seed, position, token), splitmix64's finaliser as the generator.

A request draws the same tokens whatever else is in the batch, and a preempted request draws them again.
Token −1 has the uniform that decides on a draft; positions from DRAFT_STREAM up belong to draft models, so
that a draft is independent of its verification.
"""

from __future__ import annotations

import torch
from torch import Tensor

DRAFT_STREAM = 1 << 30  # added to the position by whoever samples drafts
ACCEPT_TOKEN = -1

_POSITION_STEP = 0x9E3779B97F4A7C15
_TOKEN_STEP = 0xD1B54A32D192ED03
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def gumbel_noise(*, seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Standard Gumbel noise [N, V] float32, seeds and positions int64 [N]; logarithms in double."""
    token = torch.arange(vocab_size, dtype=torch.int64, device=seeds.device)
    bits = _mix(_row_key(seeds, positions)[:, None] + token * _signed(_TOKEN_STEP))
    # 52 bits and half a step: never 0 and, rounded to double, never 1
    uniform = _shift(bits, 12).double() * 2.0**-52 + 2.0**-53
    return -torch.log(-torch.log(uniform)).float()


def accept_uniform(*, seeds: Tensor, positions: Tensor) -> Tensor:
    """Uniforms float64 [N] in [0, 1), independent of the Gumbel noise of the same position."""
    bits = _mix(_row_key(seeds, positions) + ACCEPT_TOKEN * _signed(_TOKEN_STEP))
    return _shift(bits, 11).double() * 2.0**-53


def _row_key(seeds: Tensor, positions: Tensor) -> Tensor:
    return _mix(_mix(seeds) + positions * _signed(_POSITION_STEP))


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _signed(_MIX_1)
    x = (x ^ _shift(x, 27)) * _signed(_MIX_2)
    return x ^ _shift(x, 31)


def _shift(x: Tensor, bits: int) -> Tensor:
    # int64 shifts are arithmetic in torch; the generator is defined on unsigned words
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word
