"""One decoder layer of the generic model: one operation after the other, in torch, for the compiler to fuse.

Projections that read the same input are one matrix. T tokens, H heads, N nope, R rope, C latent, V value
dims, nI index heads of dI.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from paths.engine.parallel import ParallelGroup
from paths.generic_mrv1 import ops
from paths.generic_mrv1.products import Products
from paths.kernels.moe_route.torch_impl import moe_route
from paths.kernels.rms_norm.torch_impl import rms_norm
from paths.kernels.rope.torch_impl import rotate
from paths.models.config import ModelConfig
from paths.models.weights import LayerWeights, MlpWeights, MoeWeights

INDEX_K_NORM_EPS = 1e-6  # a constant of the architecture, not rms_norm_eps


class GenericLayer:
    """Attention and feed-forward of one layer; the residual stream belongs to the model."""

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        weights: LayerWeights,
        group: ParallelGroup,
        products: Products,
    ) -> None:
        self.config, self.layer, self.weights, self.group = config, layer, weights, group
        self.products = products
        attention, index = weights.attention, weights.indexer
        from_hidden = [attention.q_a_proj, attention.kv_a_proj]
        from_q_latent = [attention.q_b_proj]
        if index is not None:
            from_hidden += [index.wk, index.weights_proj]
            from_q_latent += [index.wq_b]
        self._a_proj = torch.cat(from_hidden)
        self._q_b_proj = torch.cat(from_q_latent)
        self._a_sizes = [matrix.shape[0] for matrix in from_hidden]
        self._q_b_sizes = [matrix.shape[0] for matrix in from_q_latent]

    def attention(self, h: Tensor, cos: Tensor, sin: Tensor, wanted: Tensor | None = None) -> Tensor:
        """h `[T, Dm]` normed, cos and sin `[T, R / 2]` of each row's position → `[N, Dm]`.

        wanted int64 `[N]`: rows that attend; None: all. The others only leave their keys.
        """
        c, w, products = self.config, self.weights.attention, self.products
        q_a, kv_a, *index_a = products.linear(h, self._a_proj).split(self._a_sizes, dim=-1)
        q_cos, q_sin = cos, sin
        if wanted is not None:
            q_a, q_cos, q_sin = q_a[wanted], cos[wanted], sin[wanted]
        q_latent = rms_norm(q_a, w.q_a_layernorm, c.rms_norm_eps)
        q, *index_q = products.linear(q_latent, self._q_b_proj).split(self._q_b_sizes, dim=-1)
        q_nope, q_pe = q.unflatten(-1, (-1, c.qk_head_dim)).split(
            (c.qk_nope_head_dim, c.qk_rope_head_dim), -1
        )
        latent, k_pe = kv_a.split((c.kv_lora_rank, c.qk_rope_head_dim), -1)
        latent = rms_norm(latent, w.kv_a_layernorm, c.rms_norm_eps)
        q_pe = rotate(q_pe, q_cos, q_sin, interleaved=c.rope_interleave)
        k_pe = rotate(k_pe[:, None], cos, sin, interleaved=c.rope_interleave)[:, 0]
        query = torch.cat([products.absorb_query(q_nope, w.w_uk), q_pe], dim=-1)
        if index_a:
            index_k, index_w = index_a
            index_inputs = (
                self._rotate_first(index_q[0].unflatten(-1, (-1, c.index_head_dim)), q_cos, q_sin),
                self._index_key(index_k, cos, sin),
                index_w if wanted is None else index_w[wanted],
            )
        # from here to the attention's output the compiler sees opaque ops only: one split per layer
        ops.mla_cache_write(latent, k_pe, self.layer)
        if index_a:
            ops.indexer(*index_inputs, self.layer)
        out = ops.sparse_attention(query, c.kv_lora_rank, c.softmax_scale, self.layer)
        value = products.expand_value(out, w.w_uv).flatten(1)
        return self.group.all_reduce(products.linear(value, w.o_proj))

    def feed_forward(self, h: Tensor) -> Tensor:
        """h `[T, Dm]` normed → `[T, Dm]`."""
        if self.weights.moe is not None:
            return self.group.all_reduce(self._moe(h, self.weights.moe))
        assert self.weights.mlp is not None
        return self.group.all_reduce(mlp(h, self.weights.mlp, self.products))

    def _index_key(self, k: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """k `[T, dI]` normed and rotated."""
        weights = self.weights.indexer
        assert weights is not None
        normed = F.layer_norm(
            k.float(), k.shape[-1:], weights.k_norm_weight, weights.k_norm_bias, INDEX_K_NORM_EPS
        ).to(k.dtype)
        return self._rotate_first(normed[:, None], cos, sin)[:, 0]

    def _rotate_first(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """The indexer's rope part stands first in each vector, unlike in the main attention."""
        rope_dim = self.config.qk_rope_head_dim
        rotated = rotate(x[..., :rope_dim], cos, sin, interleaved=self.config.indexer_rope_interleave)
        return torch.cat([rotated, x[..., rope_dim:]], dim=-1)

    def _moe(self, h: Tensor, w: MoeWeights) -> Tensor:
        c = self.config
        weights, ids = moe_route(
            h,
            w.gate,
            w.e_score_correction_bias,
            n_group=c.n_group,
            topk_group=c.topk_group,
            top_k=c.num_experts_per_tok,
            norm=c.norm_topk_prob,
            scaling=c.routed_scaling_factor,
        )
        routed = ops.moe_experts(h, ids, weights, w.w13, w.w2)
        return (routed.float() + mlp(h, w.shared, self.products).float()).to(h.dtype)


def mlp(h: Tensor, w: MlpWeights, products: Products) -> Tensor:
    """Down(silu(gate) × up), the product in float32: `[T, Dm]` → `[T, Dm]`."""
    gate, up = products.linear(h, w.gate_up_proj).chunk(2, dim=-1)
    return products.linear((F.silu(gate.float()) * up.float()).to(h.dtype), w.down_proj)
