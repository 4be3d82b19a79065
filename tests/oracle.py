"""Random tiny checkpoints of both flavours, saved by transformers, and its own log-probs for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

SIZES: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 24,
    "qk_rope_head_dim": 16,
    "v_head_dim": 20,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 1,
    "index_n_heads": 32,
    "index_head_dim": 32,
    "index_topk": 8,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,  # transformers uses 1e-6 for the latent norms whatever this says
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
GLM_LAYERS = ["full", "full", "shared", "shared", "full"]
FLAVOURS = ("v32", "glm", "glm_shared")


def save_checkpoint(flavour: str, folder: Path, *, seed: int = 0, **changes: Any) -> Any:
    """Make a random float32 model, save it under HF names, and return it."""
    transformers = pytest.importorskip("transformers", reason="transformers is the oracle")
    sizes = SIZES | {"mlp_layer_types": ["dense"] + ["sparse"] * 4} | changes
    if flavour == "v32":
        config_class, model_class = transformers.DeepseekV32Config, transformers.DeepseekV32ForCausalLM
        sizes |= {"rope_parameters": YARN}
    else:
        config_class, model_class = transformers.GlmMoeDsaConfig, transformers.GlmMoeDsaForCausalLM
        sizes |= {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "n_group": 1}
        if flavour == "glm_shared":
            sizes |= {"indexer_types": GLM_LAYERS}
    torch.manual_seed(seed)
    model = model_class(config_class(**sizes)).float().eval()
    model.config._attn_implementation = "eager"
    _randomise(model, seed)
    model.save_pretrained(folder)
    return model


def _randomise(model: Any, seed: int) -> None:
    """Default initialisation makes routing and selection degenerate; zero biases hide bias faults."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [*model.named_parameters(), *model.named_buffers()]
    with torch.no_grad():
        for name, tensor in tensors:
            if "rotary" in name or "inv_freq" in name:
                continue
            noise = torch.randn(tensor.shape, generator=generator)
            if "norm.weight" in name:
                tensor.copy_(1.0 + 0.3 * noise)
            elif "norm.bias" in name or "e_score_correction_bias" in name:
                tensor.copy_(0.3 * noise)
            elif "embed" in name:
                tensor.copy_(noise)
            else:
                tensor.copy_(0.15 * noise)


def oracle_logprobs(model: Any, tokens: list[int]) -> Tensor:
    """float32 log-probs `[T, V]` of one sequence in one forward pass."""
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].float().log_softmax(-1)


def random_tokens(length: int, *, seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, SIZES["vocab_size"], (length,), generator=generator).tolist()
