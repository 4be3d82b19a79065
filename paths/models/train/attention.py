"""MLA with gradients and the lightning indexer beside it, on rows `[B, L]` of packed documents."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from paths.models.config import ModelConfig
from paths.models.train.parameters import Parameters

INDEXER_NORM_EPS = 1e-6
HIDDEN = -3e4  # a logit of probability 0; finite, or rows of padding would have NaN in their gradients


@dataclass(frozen=True)
class Sight:
    """What a query sees: `visible` `[B, L, S]`, `bias` 0 or HIDDEN `[B, 1, L, S]`, angles `[B, L, R/2]`."""

    visible: Tensor
    bias: Tensor
    cos: Tensor
    sin: Tensor

    def part(self, rows: slice, keys: int) -> Sight:
        """Some rows, which see the first `keys` keys at most."""
        return Sight(
            self.visible[:, rows, :keys], self.bias[:, :, rows, :keys], self.cos[:, rows], self.sin[:, rows]
        )


@dataclass
class Keys:
    """What a layer keeps: per head `[B, H, S, N + R]` and `[B, H, S, V]`, for the indexer `[B, S, dI]`."""

    key: Tensor
    value: Tensor
    index: Tensor | None

    def until(self, sight: Sight) -> Keys:
        """Those that the sight covers."""
        end = sight.visible.shape[-1]
        index = None if self.index is None else self.index[:, :end]
        return Keys(self.key[:, :, :end], self.value[:, :, :end], index)

    def write(self, new: Keys, visible: Tensor) -> None:
        """Put new keys `[B, …, L, …]` in place: the last key that a row sees is its own."""
        row, start = torch.arange(visible.shape[0]), visible.sum(-1)[:, 0] - 1
        for offset in range(visible.shape[1]):
            self.key[row, :, start + offset] = new.key[:, :, offset]
            self.value[row, :, start + offset] = new.value[:, :, offset]
            if self.index is not None and new.index is not None:
                self.index[row, start + offset] = new.index[:, offset]


@dataclass(frozen=True)
class Indexing:
    """How the indexer takes part: its scores are trained by `align`, and rule what is seen by `select`."""

    align: bool
    select: bool


def rotate_half_split(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs (i, i + R/2) of the last dimension."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def split_halves(config: ModelConfig) -> Tensor:
    """Even dimensions before odd ones: turns interleaved pairs into half-split ones.

    Both sides of q · k are reordered alike, so that it is unchanged.
    """
    order = torch.arange(config.qk_rope_head_dim)
    return torch.cat([order[0::2], order[1::2]]) if config.rope_interleave else order


def project(
    p: Parameters, prefix: str, h: Tensor, sight: Sight, config: ModelConfig
) -> tuple[Tensor, Tensor, Keys]:
    """Query `[B, H, L, N + R]`, normed q latent `[B, L, q_lora_rank]`, and keys with values."""
    c, heads, nope, rope = (
        config,
        config.num_attention_heads,
        config.qk_nope_head_dim,
        config.qk_rope_head_dim,
    )
    halves = split_halves(c)
    eps, cos, sin = c.rms_norm_eps, sight.cos[:, :, None].to(h.dtype), sight.sin[:, :, None].to(h.dtype)
    q_order = torch.cat([torch.arange(nope), nope + halves])
    w_q = p[f"{prefix}.q_b_proj.weight"].view(heads, nope + rope, -1)[:, q_order].flatten(0, 1)
    kv_order = torch.cat([torch.arange(c.kv_lora_rank), c.kv_lora_rank + halves])
    w_kv = p[f"{prefix}.kv_a_proj_with_mqa.weight"][kv_order]
    latent = rms_norm(F.linear(h, p[f"{prefix}.q_a_proj.weight"]), p[f"{prefix}.q_a_layernorm.weight"], eps)
    q_nope, q_pe = F.linear(latent, w_q).unflatten(-1, (heads, nope + rope)).split([nope, rope], dim=-1)
    query = torch.cat([q_nope, rotate_half_split(q_pe, cos, sin)], dim=-1)
    compressed, k_pe = F.linear(h, w_kv).split([c.kv_lora_rank, rope], dim=-1)
    compressed = rms_norm(compressed, p[f"{prefix}.kv_a_layernorm.weight"], eps)
    expanded = F.linear(compressed, p[f"{prefix}.kv_b_proj.weight"]).unflatten(
        -1, (heads, nope + c.v_head_dim)
    )
    k_nope, value = expanded.split([nope, c.v_head_dim], dim=-1)
    k_pe = rotate_half_split(k_pe[:, :, None], cos, sin).expand(-1, -1, heads, -1)
    key = torch.cat([k_nope, k_pe], dim=-1)
    return query.transpose(1, 2), latent, Keys(key.transpose(1, 2), value.transpose(1, 2), None)


def rms_norm(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """In float32, back in the dtype of x."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * gain).to(x.dtype)


def hidden_bias(visible: Tensor) -> Tensor:
    """bool `[B, L, S]` → `[B, 1, L, S]` to add to the logits."""
    return torch.zeros(visible.shape).masked_fill(~visible, HIDDEN)[:, None]


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Values `[B, L, H × V]` and probabilities `[B, H, L, S]`."""
    logits = (query * scale) @ key.transpose(-1, -2)
    weights = (logits.float() + bias).softmax(-1).to(value.dtype)
    return (weights @ value).transpose(1, 2).flatten(2), weights


def index_keys(p: Parameters, prefix: str, h: Tensor, sight: Sight, config: ModelConfig) -> Tensor:
    """`[B, L, dI]`, rope part first."""
    rope, dim = config.qk_rope_head_dim, config.index_head_dim
    key = F.linear(h, p[f"{prefix}.indexer.wk.weight"]).float()
    gain, shift = p[f"{prefix}.indexer.k_norm.weight"], p[f"{prefix}.indexer.k_norm.bias"]
    key = F.layer_norm(key, (dim,), gain, shift, INDEXER_NORM_EPS)
    turned = _rotate_index(key[..., :rope], sight.cos, sight.sin, config)
    return torch.cat([turned, key[..., rope:]], dim=-1).to(h.dtype)


def index_scores(
    p: Parameters, prefix: str, h: Tensor, latent: Tensor, keys: Tensor, sight: Sight, config: ModelConfig
) -> Tensor:
    """float32 `[B, L, S]`: Σ over index heads of weight × ReLU(q · k); -inf where nothing is visible."""
    heads, dim, rope = config.index_n_heads, config.index_head_dim, config.qk_rope_head_dim
    query = F.linear(latent, p[f"{prefix}.indexer.wq_b.weight"]).unflatten(-1, (heads, dim))
    cos, sin = sight.cos[:, :, None], sight.sin[:, :, None]
    turned = _rotate_index(query[..., :rope].float(), cos, sin, config).to(h.dtype)
    query = torch.cat([turned, query[..., rope:]], dim=-1)
    weights = F.linear(h, p[f"{prefix}.indexer.weights_proj.weight"]) * (heads * dim) ** -0.5
    batch, length = weights.shape[:2]
    # one key serves all heads: a single product of [L × nI, dI] with [dI, S] per row
    hits = F.relu(query.flatten(1, 2) @ keys.transpose(1, 2)).unflatten(1, (length, heads))
    scores = (weights.flatten(0, 1)[:, None] @ hits.flatten(0, 1)).view(batch, length, -1)
    return scores.float().masked_fill(~sight.visible, -torch.inf)


def _rotate_index(x: Tensor, cos: Tensor, sin: Tensor, config: ModelConfig) -> Tensor:
    if not config.indexer_rope_interleave:
        return rotate_half_split(x, cos, sin)
    first, second = x[..., 0::2], x[..., 1::2]
    return torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1).flatten(-2)


def selection(scores: Tensor, count: int) -> Tensor:
    """bool `[B, L, S]`: the `count` largest finite scores of each row; ties go to any."""
    if scores.shape[-1] <= count:
        return scores > -torch.inf
    chosen = scores.topk(count, dim=-1).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, chosen, True) & (scores > -torch.inf)


def first_positions(scores: Tensor, count: int) -> Tensor:
    """bool `[B, L, S]`: the first `count` visible ones, as an indexer that is broken would choose."""
    visible = scores > -torch.inf
    return visible & (visible.cumsum(-1) <= count)


def alignment_loss(scores: Tensor, seen: Tensor, weights: Tensor) -> Tensor:
    """KL of the indexer's softmax from the attention, summed over heads and normalised; summed over rows.

    scores `[B, L, S]`, seen bool `[B, L, S]`, attention weights `[B, H, L, S]` without gradient. Rows that
    see nothing count nothing.
    """
    target = weights.detach().float().sum(1)
    target = target / target.sum(-1, keepdim=True).clamp_min(1e-9)
    log_index = scores.masked_fill(~seen, HIDDEN).log_softmax(-1)
    divergence = -(target * log_index).sum(-1) - torch.special.entr(target).sum(-1)
    return divergence.masked_fill(~seen.any(-1), 0.0).sum()
