"""Constants that the fused operations take together."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """RoPE tables of the model, shared by attention and indexer, and the pair layout of each."""

    cos: Tensor  # [P, R / 2] float32
    sin: Tensor  # [P, R / 2] float32
    interleaved: bool  # attention
    index_interleaved: bool  # indexer; rotates the first R of its dI values


@dataclass(frozen=True, kw_only=True)
class LatentNorms:
    """Norms behind a layer's first projection, float32. `index_*` are None where the selection is shared."""

    q: Tensor  # [q_lora_rank]
    kv: Tensor  # [C]
    eps: float
    index_weight: Tensor | None  # [dI] LayerNorm
    index_bias: Tensor | None  # [dI]


@dataclass(frozen=True, kw_only=True)
class MoeBlock:
    """A layer's E routed experts and behind them S shared ones, which every row takes with weight 1."""

    gate: Tensor  # [E, Dm] float32
    bias: Tensor  # [E] float32
    w13: Tensor  # [E + S, 2I, Dm], gate rows first
    w2: Tensor  # [E + S, Dm, I]
    n_group: int
    topk_group: int
    top_k: int
    norm: bool
    scaling: float
