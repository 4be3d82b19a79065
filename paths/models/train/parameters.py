"""The trained tensors by HF name; the experts of a layer are stacked while they are trained.

A parameter is float32 with the optimizer, and has the compute dtype in the forward pass, except where
`weights.py` keeps float32 too: norms, the router's rows and its bias.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from paths.models.config import ModelConfig

Parameters = dict[str, Tensor]
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
EXPERTS_IN, EXPERTS_OUT = "experts.gate_up_proj", "experts.down_proj"
ROUTER_BIAS = "e_score_correction_bias"
RESIDUAL_WRITERS = ("o_proj.weight", "down_proj.weight", EXPERTS_OUT)
FLOAT32 = ("norm.weight", "norm.bias", "mlp.gate.weight", ROUTER_BIAS)


def shapes(config: ModelConfig, *, mtp_layers: int = 1) -> dict[str, tuple[int, ...]]:
    """Every tensor's shape, in the order of the model; MTP layers follow the main ones."""
    dim, vocabulary = config.hidden_size, config.vocab_size
    found: dict[str, tuple[int, ...]] = {EMBED: (vocabulary, dim)}
    for layer in range(config.num_hidden_layers + mtp_layers):
        prefix = f"model.layers.{layer}"
        if layer >= config.num_hidden_layers:
            found |= {f"{prefix}.{name}.weight": (dim,) for name in ("enorm", "hnorm", "shared_head.norm")}
            found[f"{prefix}.eh_proj.weight"] = (dim, 2 * dim)
        found |= {f"{prefix}.{name}": shape for name, shape in _layer(config, layer)}
    return found | {"model.norm.weight": (dim,), HEAD: (vocabulary, dim)}


def _layer(config: ModelConfig, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    c, dim = config, config.hidden_size
    yield "input_layernorm.weight", (dim,)
    yield "post_attention_layernorm.weight", (dim,)
    yield "self_attn.q_a_proj.weight", (c.q_lora_rank, dim)
    yield "self_attn.q_a_layernorm.weight", (c.q_lora_rank,)
    yield "self_attn.q_b_proj.weight", (c.num_attention_heads * c.qk_head_dim, c.q_lora_rank)
    yield "self_attn.kv_a_proj_with_mqa.weight", (c.kv_lora_rank + c.qk_rope_head_dim, dim)
    yield "self_attn.kv_a_layernorm.weight", (c.kv_lora_rank,)
    rows = c.num_attention_heads * (c.qk_nope_head_dim + c.v_head_dim)
    yield "self_attn.kv_b_proj.weight", (rows, c.kv_lora_rank)
    yield "self_attn.o_proj.weight", (dim, c.num_attention_heads * c.v_head_dim)
    yield "self_attn.indexer.wq_b.weight", (c.index_n_heads * c.index_head_dim, c.q_lora_rank)
    yield "self_attn.indexer.wk.weight", (c.index_head_dim, dim)
    yield "self_attn.indexer.k_norm.weight", (c.index_head_dim,)
    yield "self_attn.indexer.k_norm.bias", (c.index_head_dim,)
    yield "self_attn.indexer.weights_proj.weight", (c.index_n_heads, dim)
    if not c.is_moe(layer):
        yield from _mlp("mlp", c.intermediate_size, dim)
        return
    width, experts = c.moe_intermediate_size, c.n_routed_experts
    yield "mlp.gate.weight", (experts, dim)
    yield f"mlp.gate.{ROUTER_BIAS}", (experts,)
    yield f"mlp.{EXPERTS_IN}", (experts, 2 * width, dim)
    yield f"mlp.{EXPERTS_OUT}", (experts, dim, width)
    yield from _mlp("mlp.shared_experts", width * c.n_shared_experts, dim)


def _mlp(prefix: str, width: int, dim: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{prefix}.gate_proj.weight", (width, dim)
    yield f"{prefix}.up_proj.weight", (width, dim)
    yield f"{prefix}.down_proj.weight", (dim, width)


def initial_parameters(config: ModelConfig, *, seed: int) -> Parameters:
    """Seeded float32 values: unit-scale linear maps, small writers into the residual, a small head."""
    generator = torch.Generator().manual_seed(seed)
    gain = 1.0 / math.sqrt(2 * config.num_hidden_layers)
    parameters: Parameters = {}
    for name, shape in shapes(config).items():
        if name.endswith("norm.weight"):
            parameters[name] = torch.ones(shape)
        elif name.endswith(("norm.bias", ROUTER_BIAS)):
            parameters[name] = torch.zeros(shape)
        else:
            values = torch.randn(shape, generator=generator)
            scale = 1.0 / math.sqrt(shape[-1])
            if name == EMBED:
                scale = 0.5
            elif name == HEAD:
                scale *= 0.2
            elif name.endswith(RESIDUAL_WRITERS):
                scale *= gain
            parameters[name] = values.mul_(scale)
    return parameters


def computed(parameters: Parameters, dtype: torch.dtype) -> Parameters:
    """Leaves for one forward pass in the compute dtype, which gradients gather in."""
    found: Parameters = {}
    for name, values in parameters.items():
        leaf = values.detach().to(torch.float32 if name.endswith(FLOAT32) else dtype, copy=True)
        found[name] = leaf.requires_grad_(not name.endswith(ROUTER_BIAS))
    return found
