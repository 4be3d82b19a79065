"""RoPE and YaRN as numbers: inverse frequencies, softmax correction, and the cos/sin tables.

The tables follow one fixed recipe, because at position 1e6 a float32 ulp of the angle is 0.06 rad: the
inverse frequency is rounded to float32, then one float32 multiplication makes the angle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """Rotary embedding of `dim` values per head. YaRN is active iff `factor` > 1."""

    theta: float
    dim: int
    factor: float = 1.0
    original_max_position_embeddings: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0
    mscale_all_dim: float = 0.0
    attention_factor: float | None = None  # multiplies the tables; None derives it from the two mscales

    @property
    def yarn(self) -> bool:
        return self.factor > 1.0

    @property
    def table_scale(self) -> float:
        """Factor on cos and sin: m(mscale) / m(mscale_all_dim), 1 when both are equal."""
        if not self.yarn:
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        return yarn_mscale(self.factor, self.mscale) / yarn_mscale(self.factor, self.mscale_all_dim)

    @property
    def softmax_correction(self) -> float:
        """m(mscale_all_dim)², the factor on the attention scale; 1 without YaRN."""
        return yarn_mscale(self.factor, self.mscale_all_dim) ** 2 if self.yarn else 1.0

    def inverse_frequencies(self) -> list[float]:
        """`[dim / 2]` in float64: theta^(-2i/dim), blended with the interpolated ones under YaRN."""
        plain = [self.theta ** (-2.0 * i / self.dim) for i in range(self.dim // 2)]
        if not self.yarn:
            return plain
        low, high = self._ramp_bounds()
        ramps = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(self.dim // 2)]
        return [f * (1.0 - r) + f / self.factor * r for f, r in zip(plain, ramps, strict=True)]

    def _ramp_bounds(self) -> tuple[float, float]:
        """Pair indices between which the frequencies go from untouched to interpolated."""

        def pair_of(rotations: float) -> float:
            turns = self.original_max_position_embeddings / (2.0 * math.pi * rotations)
            return self.dim * math.log(turns) / (2.0 * math.log(self.theta))

        low: float = max(math.floor(pair_of(self.beta_fast)), 0)
        high: float = min(math.ceil(pair_of(self.beta_slow)), self.dim - 1)
        if low == high:
            high += 0.001
        return low, high


def yarn_mscale(factor: float, mscale: float) -> float:
    """0.1 × mscale × ln(factor) + 1 (YaRN paper, section 3.4); 1 for factor ≤ 1."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def rope_tables(rope: RopeConfig, num_positions: int) -> tuple[Tensor, Tensor]:
    """float32 cos and sin `[num_positions, dim / 2]`."""
    import torch  # here, so that the configuration stays free of torch

    inverse = torch.tensor(rope.inverse_frequencies(), dtype=torch.float64).float()
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * inverse
    return angles.cos() * rope.table_scale, angles.sin() * rope.table_scale
