"""A model's weights in memory: one dataclass per layer, assembled from any source of HF-named tensors.

Linear weights are `[out, in]`. Norms, the indexer's LayerNorm, the router's rows and its bias stay float32,
for routing and selection turn on their last bits; everything else has the model's dtype.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from paths.api import ModelSource, UserError
from paths.models.checkpoint import Checkpoint
from paths.models.config import ModelConfig
from paths.models.dummy import DummyWeights


class TensorSource(Protocol):
    """Where tensors come from, by HF name."""

    def __contains__(self, name: str) -> bool: ...

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class AttentionWeights:
    """MLA. H heads, N nope, R rope, V value dims, C latent width."""

    q_a_proj: Tensor  # [q_lora_rank, Dm]
    q_a_layernorm: Tensor  # [q_lora_rank] float32
    q_b_proj: Tensor  # [H × (N + R), q_lora_rank], per head nope first
    kv_a_proj: Tensor  # [C + R, Dm], latent first
    kv_a_layernorm: Tensor  # [C] float32
    w_uk: Tensor  # [H, N, C]: the key half of kv_b_proj
    w_uv: Tensor  # [H, V, C]: the value half of kv_b_proj
    o_proj: Tensor  # [Dm, H × V]


@dataclass(frozen=True, kw_only=True)
class IndexerWeights:
    """Lightning indexer: nI heads of dI for queries, one head of dI for keys."""

    wq_b: Tensor  # [nI × dI, q_lora_rank]
    wk: Tensor  # [dI, Dm]
    k_norm_weight: Tensor  # [dI] float32
    k_norm_bias: Tensor  # [dI] float32
    weights_proj: Tensor  # [nI, Dm]


@dataclass(frozen=True, kw_only=True)
class MlpWeights:
    """Down(silu(gate) × up)."""

    gate_up_proj: Tensor  # [2I, Dm], gate rows first
    down_proj: Tensor  # [Dm, I]


@dataclass(frozen=True, kw_only=True)
class MoeWeights:
    """E routed experts and the shared ones as a single wider expert."""

    gate: Tensor  # [E, Dm] float32
    e_score_correction_bias: Tensor  # [E] float32
    w13: Tensor  # [E, 2I, Dm], gate rows first
    w2: Tensor  # [E, Dm, I]
    shared: MlpWeights


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    """One decoder layer. `indexer` is None where the selection is shared; one of `mlp` and `moe` is None."""

    input_layernorm: Tensor  # [Dm] float32
    post_attention_layernorm: Tensor  # [Dm] float32
    attention: AttentionWeights
    indexer: IndexerWeights | None
    mlp: MlpWeights | None
    moe: MoeWeights | None


@dataclass(frozen=True, kw_only=True)
class MtpWeights:
    """One MTP layer. Without copies in the checkpoint, `embed_tokens` and `head` are the main model's."""

    embed_tokens: Tensor  # [V, Dm]
    enorm: Tensor  # [Dm] float32, of the embedding
    hnorm: Tensor  # [Dm] float32, of the hidden state
    eh_proj: Tensor  # [Dm, 2Dm], embedding half first
    layer: LayerWeights  # always with an indexer of its own
    norm: Tensor  # [Dm] float32: shared_head.norm
    head: Tensor  # [V, Dm]


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The main model, and the MTP layers that were asked for."""

    embed_tokens: Tensor  # [V, Dm]
    layers: tuple[LayerWeights, ...]
    norm: Tensor  # [Dm] float32
    lm_head: Tensor  # [V, Dm]
    mtp: tuple[MtpWeights, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Tensors that are shared count once."""
        tensors = {id(t): t for _, t in named_tensors(self)}.values()
        return sum(t.numel() * t.element_size() for t in tensors)


def load_weights(
    source: ModelSource,
    config: ModelConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    seed: int = 0,
    mtp: int = 0,
) -> Weights:
    """Dummy weights for `checkpoint="dummy"`, else the safetensors of that folder.

    mtp: how many tokens are drafted; the MTP layers that this takes are loaded too. Raises UserError.
    """
    tensors: TensorSource
    tensors = (
        DummyWeights(config, seed=seed)
        if source.checkpoint == "dummy"
        else Checkpoint(Path(source.checkpoint))
    )
    return assemble(tensors, config, dtype=dtype, device=device, mtp=mtp)


def assemble(
    source: TensorSource, config: ModelConfig, *, dtype: torch.dtype, device: torch.device, mtp: int = 0
) -> Weights:
    """Ask the source for exactly the tensors that the configuration and `mtp` drafted tokens need.

    The indexers of layers that share one, `rotary_emb.inv_freq` and, without drafts, MTP layers (index ≥
    num_hidden_layers) may be in a checkpoint; they are never asked for. Raises UserError.
    """
    return _Assembler(source, config, dtype, device).weights(mtp)


def named_tensors(node: object, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor of nested weight dataclasses with its dotted name, in definition order."""
    if isinstance(node, Tensor):
        yield prefix, node
    elif isinstance(node, tuple):
        for i, item in enumerate(node):
            yield from named_tensors(item, f"{prefix}.{i}")
    elif is_dataclass(node):
        for field in fields(node):
            yield from named_tensors(getattr(node, field.name), f"{prefix}.{field.name}".lstrip("."))


def digest(weights: Weights) -> str:
    """SHA-256 over names, shapes and bytes; equal for equal weights."""
    state = hashlib.sha256()
    for name, tensor in named_tensors(weights):
        state.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        state.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return state.hexdigest()


class _Assembler:
    def __init__(
        self, source: TensorSource, config: ModelConfig, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.source, self.config, self.dtype, self.device = source, config, dtype, device

    def weights(self, mtp: int) -> Weights:
        c = self.config
        mtp_layers = c.mtp_layers(mtp)
        embed_tokens = self._linear("model.embed_tokens", c.vocab_size, c.hidden_size)
        lm_head = self._linear("lm_head", c.vocab_size, c.hidden_size)
        return Weights(
            embed_tokens=embed_tokens,
            layers=tuple(self._layer(i) for i in range(c.num_hidden_layers)),
            norm=self._float32("model.norm.weight", c.hidden_size),
            lm_head=lm_head,
            mtp=tuple(self._mtp(c.num_hidden_layers + n, embed_tokens, lm_head) for n in range(mtp_layers)),
        )

    def _mtp(self, layer: int, embed_tokens: Tensor, lm_head: Tensor) -> MtpWeights:
        dim, prefix = self.config.hidden_size, f"model.layers.{layer}"
        first = f"{prefix}.eh_proj.weight"
        if first not in self.source:
            raise UserError(
                f"tensor {first} is missing: config.json promises "
                f"{self.config.num_nextn_predict_layers} MTP layers (num_nextn_predict_layers), the "
                "checkpoint lacks this one; set mtp=0 or use a checkpoint with its MTP layers"
            )
        return MtpWeights(
            embed_tokens=self._copy_of(embed_tokens, f"{prefix}.embed_tokens"),
            enorm=self._float32(f"{prefix}.enorm.weight", dim),
            hnorm=self._float32(f"{prefix}.hnorm.weight", dim),
            eh_proj=self._linear(f"{prefix}.eh_proj", dim, 2 * dim),
            layer=self._layer(layer),
            norm=self._float32(f"{prefix}.shared_head.norm.weight", dim),
            head=self._copy_of(lm_head, f"{prefix}.shared_head.head"),
        )

    def _copy_of(self, main: Tensor, module: str) -> Tensor:
        """The checkpoint's copy where it has one that differs, else the main model's tensor itself."""
        if f"{module}.weight" not in self.source:
            return main
        copy = self._linear(module, *main.shape)
        return main if torch.equal(copy, main) else copy

    def _layer(self, layer: int) -> LayerWeights:
        c, prefix = self.config, f"model.layers.{layer}"
        moe = c.is_moe(layer)
        return LayerWeights(
            input_layernorm=self._float32(f"{prefix}.input_layernorm.weight", c.hidden_size),
            post_attention_layernorm=self._float32(
                f"{prefix}.post_attention_layernorm.weight", c.hidden_size
            ),
            attention=self._attention(f"{prefix}.self_attn"),
            indexer=self._indexer(f"{prefix}.self_attn.indexer") if c.owns_indexer(layer) else None,
            mlp=None if moe else self._mlp(f"{prefix}.mlp", c.intermediate_size),
            moe=self._moe(f"{prefix}.mlp") if moe else None,
        )

    def _attention(self, prefix: str) -> AttentionWeights:
        c = self.config
        heads, nope, value = c.num_attention_heads, c.qk_nope_head_dim, c.v_head_dim
        kv_b = self._linear(f"{prefix}.kv_b_proj", heads * (nope + value), c.kv_lora_rank)
        kv_b = kv_b.view(heads, nope + value, c.kv_lora_rank)
        return AttentionWeights(
            q_a_proj=self._linear(f"{prefix}.q_a_proj", c.q_lora_rank, c.hidden_size),
            q_a_layernorm=self._float32(f"{prefix}.q_a_layernorm.weight", c.q_lora_rank),
            q_b_proj=self._linear(f"{prefix}.q_b_proj", heads * c.qk_head_dim, c.q_lora_rank),
            kv_a_proj=self._linear(
                f"{prefix}.kv_a_proj_with_mqa", c.kv_lora_rank + c.qk_rope_head_dim, c.hidden_size
            ),
            kv_a_layernorm=self._float32(f"{prefix}.kv_a_layernorm.weight", c.kv_lora_rank),
            w_uk=kv_b[:, :nope].contiguous(),
            w_uv=kv_b[:, nope:].contiguous(),
            o_proj=self._linear(f"{prefix}.o_proj", c.hidden_size, heads * value),
        )

    def _indexer(self, prefix: str) -> IndexerWeights:
        c = self.config
        return IndexerWeights(
            wq_b=self._linear(f"{prefix}.wq_b", c.index_n_heads * c.index_head_dim, c.q_lora_rank),
            wk=self._linear(f"{prefix}.wk", c.index_head_dim, c.hidden_size),
            k_norm_weight=self._float32(f"{prefix}.k_norm.weight", c.index_head_dim),
            k_norm_bias=self._float32(f"{prefix}.k_norm.bias", c.index_head_dim),
            weights_proj=self._linear(f"{prefix}.weights_proj", c.index_n_heads, c.hidden_size),
        )

    def _mlp(self, prefix: str, width: int) -> MlpWeights:
        dim = self.config.hidden_size
        gate, up = (self._linear(f"{prefix}.{half}_proj", width, dim) for half in ("gate", "up"))
        return MlpWeights(
            gate_up_proj=torch.cat([gate, up]), down_proj=self._linear(f"{prefix}.down_proj", dim, width)
        )

    def _moe(self, prefix: str) -> MoeWeights:
        c = self.config
        experts, width, dim = c.n_routed_experts, c.moe_intermediate_size, c.hidden_size
        w13 = torch.empty(experts, 2 * width, dim, dtype=self.dtype, device=self.device)
        w2 = torch.empty(experts, dim, width, dtype=self.dtype, device=self.device)
        for e in range(experts):
            name = f"{prefix}.experts.{e}"
            w13[e, :width] = self._linear(f"{name}.gate_proj", width, dim)
            w13[e, width:] = self._linear(f"{name}.up_proj", width, dim)
            w2[e] = self._linear(f"{name}.down_proj", dim, width)
        return MoeWeights(
            gate=self._float32(f"{prefix}.gate.weight", experts, dim),
            e_score_correction_bias=self._float32(f"{prefix}.gate.e_score_correction_bias", experts),
            w13=w13,
            w2=w2,
            shared=self._mlp(f"{prefix}.shared_experts", width * c.n_shared_experts),
        )

    def _linear(self, module: str, rows: int, columns: int) -> Tensor:
        return self.source.get(f"{module}.weight", (rows, columns)).to(self.device, self.dtype)

    def _float32(self, name: str, *shape: int) -> Tensor:
        return self.source.get(name, shape).to(self.device, torch.float32)
