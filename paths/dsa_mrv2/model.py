"""DeepSeek-Sparse-Attention model of few, large operations, without compilation.

A layer is: one projection for everything that reads its input; norms, RoPE and cache writes; one projection
of the query latent; both queries; then the eager part (indexer and attention, in `_sparse_attention`), output
projection and feed-forward. T tokens, Dm hidden, H heads, C latent, R rope, N nope, V value, nI × dI indexer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from paths.dsa_mrv2.kernels.arguments import LatentNorms, MoeBlock, Rotary
from paths.dsa_mrv2.kernels.registry import FusedKernels
from paths.engine.batch import ForwardBatch, LayerCache
from paths.engine.context import ForwardContext, current_context, forward_context
from paths.engine.parallel import ParallelGroup
from paths.graphs.breakable import break_output, break_point
from paths.kernels.registry import Kernels
from paths.models.config import ModelConfig
from paths.models.gemm import writes_float32
from paths.models.rope import rope_tables
from paths.models.weights import LayerWeights, MlpWeights, MoeWeights, MtpWeights, Weights


@dataclass(frozen=True, kw_only=True)
class FusedLayer:
    """One layer's weights with the projections that share an input joined."""

    input_proj: Tensor  # [Q + C + R (+ dI + nI), Dm]: q_a, kv_a (, wk, weights_proj)
    query_proj: Tensor  # [H × (N + R) (+ nI × dI), Q]: q_b (, wq_b)
    norms: LatentNorms
    w_uk: Tensor  # [H, N, C]
    w_uv: Tensor  # [H, V, C]
    o_proj: Tensor  # [Dm, H × V]
    post_attention_norm: Tensor  # [Dm] float32
    next_norm: Tensor  # [Dm] float32: the following layer's input norm, or the final norm
    moe: MoeBlock | None
    mlp: MlpWeights | None  # of a dense layer
    has_indexer: bool


@dataclass(frozen=True, kw_only=True)
class FusedMtpLayer:
    """What stands before an MTP layer's decoder layer, and its head."""

    weights: MtpWeights
    layer: FusedLayer  # its next_norm is shared_head.norm


class DsaModel:
    """DeepSeek V3.2 and GLM-5 on fused operations. Buffers and caches belong to the caller."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        kernels: Kernels,
        *,
        dtype: torch.dtype,
        group: ParallelGroup,
        hadamard: bool,
        max_model_len: int | None = None,
        fused: str = "auto",
    ) -> None:
        self.config = config
        self.dtype = dtype
        self._kernels = kernels
        self._fused = FusedKernels(kernels, fused)
        self._group = group
        self.hadamard = hadamard
        self.max_model_len = max_model_len or config.max_position_embeddings
        cos, sin = rope_tables(config.rope, self.max_model_len)
        self._rotary = Rotary(
            cos=cos.to(kernels.device),
            sin=sin.to(kernels.device),
            interleaved=config.rope_interleave,
            index_interleaved=config.indexer_rope_interleave,
        )
        self._embedding = weights.embed_tokens
        self._first_norm = weights.layers[0].input_layernorm
        self._lm_head = weights.lm_head
        following = [*(layer.input_layernorm for layer in weights.layers[1:]), weights.norm]
        self.layers = tuple(
            fuse_layer(config, layer, next_norm)
            for layer, next_norm in zip(weights.layers, following, strict=True)
        )
        self._mtp = tuple(
            FusedMtpLayer(weights=mtp, layer=fuse_layer(config, mtp.layer, mtp.norm)) for mtp in weights.mtp
        )

    def forward(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Tensor:
        """Hidden states `[T, Dm]` after the final norm; writes the rows' keys into `caches`."""
        with forward_context(self.context(batch, caches)):
            return self._hidden(batch, caches)

    def context(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> ForwardContext:
        """What the eager part of each layer looks up."""
        return ForwardContext(
            batch=batch,
            caches=caches,
            kernels=self._kernels,
            index_topk=self.config.index_topk,
            hadamard=self.hadamard,
        )

    def bind(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Callable[[], Tensor]:
        """The forward pass over these tensors, for a capture."""
        return partial(self._hidden, batch, caches)

    def num_breaks(self) -> int:
        """The eager part of each layer."""
        return len(self.layers)

    def draft(
        self, batch: ForwardBatch, hidden: Tensor, caches: Sequence[LayerCache], *, step: int = 0
    ) -> Tensor:
        """States `[N, Dm]` of draft `step` for `batch.queries`, normed; writes into the MTP layer's cache."""
        with forward_context(self.draft_context(batch, caches, step=step)):
            return self._draft(batch, hidden, caches, step)

    def draft_logits(self, hidden: Tensor, *, step: int = 0) -> Tensor:
        """hidden `[N, Dm]` → float32 `[N, V]`."""
        return self._project(hidden, self._mtp[step % len(self._mtp)].weights.head)

    def draft_context(
        self, batch: ForwardBatch, caches: Sequence[LayerCache], *, step: int
    ) -> ForwardContext:
        """What the eager part of a draft looks up."""
        return replace(self.context(batch, caches), keep_selection=self.config.reuses_selection(step))

    def bind_draft(
        self, batch: ForwardBatch, hidden: Tensor, caches: Sequence[LayerCache], *, step: int
    ) -> Callable[[], Tensor]:
        """A draft over these tensors, for a capture."""
        return partial(self._draft, batch, hidden, caches, step)

    def num_draft_breaks(self) -> int:
        """One layer."""
        return 1

    def _draft(self, batch: ForwardBatch, hidden: Tensor, caches: Sequence[LayerCache], step: int) -> Tensor:
        eps, number = self.config.rms_norm_eps, step % len(self._mtp)
        mtp, cache = self._mtp[number], caches[len(self.layers) + number]
        keeps, weights, layer = self.config.reuses_selection(step), mtp.weights, mtp.layer
        if not keeps and not self._needs_scores(batch):
            self._kernels.select_all(batch.queries.lengths, out=batch.queries.topk_indices)
        _, embedded = self._fused.embed_norm(batch.input_ids, weights.embed_tokens, weights.enorm, eps)
        state = self._kernels.rms_norm(hidden, weights.hnorm, eps)
        residual = self._fused.linear(torch.cat([embedded, state], dim=-1), weights.eh_proj)
        normed = self._kernels.rms_norm(residual, weights.layer.input_layernorm, eps)
        ranks = not keeps and self._needs_scores(batch)
        return self._layer(layer, normed, residual, batch, cache, ranks=ranks)[0]

    def _hidden(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Tensor:
        eps = self.config.rms_norm_eps
        ranks = self._needs_scores(batch)
        if not ranks:
            self._kernels.select_all(batch.lengths, out=batch.topk_indices)
        residual, hidden = self._fused.embed_norm(batch.input_ids, self._embedding, self._first_norm, eps)
        for layer, cache in zip(self.layers, caches[: len(self.layers)], strict=True):
            hidden, residual = self._layer(layer, hidden, residual, batch, cache, ranks=ranks)
        return hidden

    def _layer(
        self,
        layer: FusedLayer,
        hidden: Tensor,
        residual: Tensor,
        batch: ForwardBatch,
        cache: LayerCache,
        *,
        ranks: bool,
    ) -> tuple[Tensor, Tensor]:
        """hidden `[T, Dm]` normed → (the next layer's normed input, residual) `[N, Dm]`."""
        eps = self.config.rms_norm_eps
        attended = self._group.all_reduce(self._attention(layer, hidden, batch, cache, ranks=ranks))
        residual = self._wanted(residual, batch)
        hidden, residual = self._kernels.add_rms_norm(attended, residual, layer.post_attention_norm, eps)
        output = self._group.all_reduce(self._feed_forward(layer, hidden))
        return self._kernels.add_rms_norm(output, residual, layer.next_norm, eps)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden `[N, Dm]` → float32 `[N, V]`."""
        return self._project(hidden, self._lm_head)

    def _project(self, hidden: Tensor, head: Tensor) -> Tensor:
        if writes_float32(hidden):
            return torch.mm(hidden, head.t(), out_dtype=torch.float32)
        return self._fused.linear(hidden, head).float()

    def compile_mode(self) -> str:
        return "none"

    def compile_count(self) -> int:
        return 0

    def _attention(
        self, layer: FusedLayer, hidden: Tensor, batch: ForwardBatch, cache: LayerCache, *, ranks: bool
    ) -> Tensor:
        config = self.config
        projected = self._fused.linear(hidden, layer.input_proj)
        q_latent = self._fused.fused_norm_rope(
            projected, layer.norms, self._rotary, batch, cache, hadamard=self.hadamard
        )
        q_latent = self._wanted(q_latent, batch)
        scored = layer.has_indexer and ranks
        width = config.num_attention_heads * config.qk_head_dim
        query_proj = layer.query_proj if scored else layer.query_proj[:width]
        q, index_q, index_weights = self._fused.fused_q(
            self._fused.linear(q_latent, query_proj),
            layer.w_uk,
            self._rotary,
            batch.queries.positions,
            self._wanted(projected[:, -config.index_n_heads :], batch) if scored else None,
            index_dim=config.index_head_dim,
            index_dtype=cache.index_dtype,
            hadamard=self.hadamard,
        )
        output = break_output(hidden, q.shape[0], layer.o_proj.shape[1])
        self._sparse_attention(layer, q, index_q, index_weights, cache, output)
        return self._fused.linear(output, layer.o_proj)

    @break_point(writes="output")
    def _sparse_attention(
        self,
        layer: FusedLayer,
        q: Tensor,
        index_q: Tensor,
        index_weights: Tensor,
        cache: LayerCache,
        output: Tensor,
    ) -> None:
        """The eager part of a layer: its shapes depend on the context lengths. Writes output `[T, H × V]`.

        The tensors may have padding rows behind those of the running batch: their output is 0. What it is
        would else decide which experts they take, and so how many rows share a multiplication.
        """
        batch = current_context().batch.queries
        live = batch.num_tokens
        if q.shape[0] != live:
            output[live:].zero_()
            q, index_q, index_weights, output = q[:live], index_q[:live], index_weights[:live], output[:live]
        k = self.config.index_topk
        if index_q.shape[0] > 0:
            self._kernels.index_topk(index_q, index_weights, cache, batch, k)
        latent, _ = self._kernels.sparse_mla(
            q, cache, batch, k, latent=self.config.kv_lora_rank, scale=self.config.softmax_scale
        )
        self._fused.absorb_output(latent, layer.w_uv, output)

    def _wanted(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Rows of x `[T, D]` that attend."""
        return x if batch.wanted is None else self._kernels.gather_rows(x, batch.wanted.rows)

    def _needs_scores(self, batch: ForwardBatch) -> bool:
        """Where every row sees at most index_topk keys, nothing is ranked and the indexer needs no query."""
        return batch.max_length > self.config.index_topk

    def _feed_forward(self, layer: FusedLayer, hidden: Tensor) -> Tensor:
        if layer.moe is not None:
            return self._fused.moe_block(hidden, layer.moe)
        assert layer.mlp is not None, "a layer has experts or a dense MLP"
        return self._fused.gated_mlp(hidden, layer.mlp.gate_up_proj, layer.mlp.down_proj)


def fuse_layer(config: ModelConfig, layer: LayerWeights, next_norm: Tensor) -> FusedLayer:
    """Join the projections that read the same input, and the shared expert with the routed ones."""
    attention, indexer = layer.attention, layer.indexer
    input_parts = [attention.q_a_proj, attention.kv_a_proj]
    query_parts = [attention.q_b_proj]
    if indexer is not None:
        input_parts += [indexer.wk, indexer.weights_proj]
        query_parts += [indexer.wq_b]
    return FusedLayer(
        input_proj=torch.cat(input_parts),
        query_proj=torch.cat(query_parts),
        norms=LatentNorms(
            q=attention.q_a_layernorm,
            kv=attention.kv_a_layernorm,
            eps=config.rms_norm_eps,
            index_weight=None if indexer is None else indexer.k_norm_weight,
            index_bias=None if indexer is None else indexer.k_norm_bias,
        ),
        w_uk=attention.w_uk,
        w_uv=attention.w_uv,
        o_proj=attention.o_proj,
        post_attention_norm=layer.post_attention_layernorm,
        next_norm=next_norm,
        moe=None if layer.moe is None else join_experts(config, layer.moe),
        mlp=layer.mlp,
        has_indexer=indexer is not None,
    )


def join_experts(config: ModelConfig, moe: MoeWeights) -> MoeBlock:
    """The shared expert is cut into pieces of the routed width: their sum is the wide expert."""
    pieces, width = config.n_shared_experts, config.moe_intermediate_size
    gate, up = moe.shared.gate_up_proj.view(2, pieces, width, -1)
    down = moe.shared.down_proj.unflatten(1, (pieces, width)).transpose(0, 1)
    return MoeBlock(
        gate=moe.gate,
        bias=moe.e_score_correction_bias,
        w13=torch.cat([moe.w13, torch.cat([gate, up], dim=1)]),
        w2=torch.cat([moe.w2, down]),
        n_group=config.n_group,
        topk_group=config.topk_group,
        top_k=config.num_experts_per_tok,
        norm=config.norm_topk_prob,
        scaling=config.routed_scaling_factor,
    )
