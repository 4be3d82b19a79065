"""The model's configuration, read and checked from an HF `config.json`. Imports no torch."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paths.api import UserError
from paths.models.rope import RopeConfig

logger = logging.getLogger(__name__)

# architecture → (model_type, does the indexer rotate interleaved pairs when the config does not say)
ARCHITECTURES = {
    "DeepseekV32ForCausalLM": ("deepseek_v32", False),
    "GlmMoeDsaForCausalLM": ("glm_moe_dsa", True),
}
# what the code implements, with what an absent key means
FIXED_VALUES: dict[str, Any] = {
    "hidden_act": "silu",
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Sizes and switches of a DeepSeek-V3.2 or GLM-5 model, named as in HF."""

    architecture: str
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    intermediate_size: int
    moe_intermediate_size: int
    first_k_dense_replace: int
    moe_layer_freq: int
    n_routed_experts: int
    n_shared_experts: int
    num_experts_per_tok: int
    n_group: int
    topk_group: int
    norm_topk_prob: bool
    routed_scaling_factor: float
    rms_norm_eps: float
    max_position_embeddings: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    rope: RopeConfig
    rope_interleave: bool
    indexer_rope_interleave: bool
    indexer_full: tuple[bool, ...]  # per layer: owns an indexer, or reuses the last one's selection
    num_nextn_predict_layers: int  # MTP layers behind the main ones; 0: the model cannot draft
    index_share_for_mtp_iteration: bool  # drafts after the first reuse the first one's selection
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    pad_token_id: int | None

    @property
    def qk_head_dim(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def softmax_scale(self) -> float:
        """(nope + rope)^-1/2 with YaRN's correction; never (kv_lora_rank + rope)^-1/2, absorbed or not."""
        return self.qk_head_dim**-0.5 * self.rope.softmax_correction

    def is_moe(self, layer: int) -> bool:
        return layer >= self.first_k_dense_replace and layer % self.moe_layer_freq == 0

    def owns_indexer(self, layer: int) -> bool:
        """An MTP layer, numbered from num_hidden_layers on, always does."""
        return layer >= self.num_hidden_layers or self.indexer_full[layer]

    def mtp_layers(self, mtp: int) -> int:
        """How many MTP layers draft `mtp` tokens: draft j is made by layer j mod num_nextn_predict_layers.

        Raises UserError where the model has none.
        """
        if mtp and not self.num_nextn_predict_layers:
            raise UserError(
                f"mtp={mtp}: the model has no MTP layer (num_nextn_predict_layers=0); "
                "set mtp=0 or choose a model with one"
            )
        return min(mtp, self.num_nextn_predict_layers)

    def reuses_selection(self, step: int) -> bool:
        """Whether draft `step` attends to the keys that draft 0 selected, instead of ranking its own."""
        return self.index_share_for_mtp_iteration and step > 0

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> ModelConfig:
        """Read an HF configuration. Raises UserError naming the value, what is allowed and the remedy."""
        architecture = _architecture(hf)
        _check_fixed(hf)
        layers = _positive(hf, "num_hidden_layers")
        heads = _positive(hf, "num_attention_heads")
        rope_dim = _positive(hf, "qk_rope_head_dim")
        config = cls(
            architecture=architecture,
            vocab_size=_positive(hf, "vocab_size"),
            hidden_size=_positive(hf, "hidden_size"),
            num_hidden_layers=layers,
            num_attention_heads=heads,
            q_lora_rank=_positive(hf, "q_lora_rank"),
            kv_lora_rank=_positive(hf, "kv_lora_rank"),
            qk_nope_head_dim=_positive(hf, "qk_nope_head_dim"),
            qk_rope_head_dim=rope_dim,
            v_head_dim=_positive(hf, "v_head_dim"),
            intermediate_size=_positive(hf, "intermediate_size"),
            moe_intermediate_size=_positive(hf, "moe_intermediate_size"),
            first_k_dense_replace=_dense_layers(hf, layers),
            moe_layer_freq=_positive(hf, "moe_layer_freq", default=1),
            n_routed_experts=_positive(hf, "n_routed_experts"),
            n_shared_experts=_positive(hf, "n_shared_experts", default=1),
            num_experts_per_tok=_positive(hf, "num_experts_per_tok"),
            n_group=_positive(hf, "n_group", default=1),
            topk_group=_positive(hf, "topk_group", default=1),
            norm_topk_prob=bool(hf.get("norm_topk_prob", True)),
            routed_scaling_factor=_number(hf, "routed_scaling_factor", 1.0),
            rms_norm_eps=_number(hf, "rms_norm_eps", 1e-6),
            max_position_embeddings=_positive(hf, "max_position_embeddings"),
            index_n_heads=_positive(hf, "index_n_heads"),
            index_head_dim=_positive(hf, "index_head_dim"),
            index_topk=_positive(hf, "index_topk"),
            rope=_rope(hf, rope_dim),
            rope_interleave=bool(hf.get("rope_interleave", True)),
            indexer_rope_interleave=bool(hf.get("indexer_rope_interleave", ARCHITECTURES[architecture][1])),
            indexer_full=_indexer_full(hf, layers),
            num_nextn_predict_layers=_nextn_layers(hf),
            index_share_for_mtp_iteration=bool(hf.get("index_share_for_mtp_iteration", False)),
            eos_token_ids=_eos(hf),
            bos_token_id=_token(hf, "bos_token_id"),
            pad_token_id=_token(hf, "pad_token_id"),
        )
        kv_heads = hf.get("num_key_value_heads", heads)
        if kv_heads != heads:
            raise UserError(
                f"num_key_value_heads={kv_heads} must equal num_attention_heads={heads}: MLA has no groups"
            )
        _check_sizes(config)
        return config


def read_hf_config(folder: Path) -> dict[str, Any]:
    """The `config.json` of a checkpoint folder. Raises UserError if it is missing or not a JSON object."""
    path = folder / "config.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"cannot read {path} ({error.strerror}): "
            "checkpoint must be a folder with config.json and safetensors"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON ({error}): copy the checkpoint again") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds a {type(content).__name__}, not an object: copy the checkpoint again")
    return content


def _architecture(hf: Mapping[str, Any]) -> str:
    names = _sequence(hf, "architectures", list) or []
    for architecture, (model_type, _) in ARCHITECTURES.items():
        if architecture in names or (not names and hf.get("model_type") == model_type):
            return architecture
    given = names[0] if names else hf.get("model_type")
    raise UserError(
        f"unknown architecture {given!r}: allowed are {', '.join(ARCHITECTURES)}; choose such a model"
    )


def _check_fixed(hf: Mapping[str, Any]) -> None:
    if hf.get("quantization_config") is not None:
        given = hf["quantization_config"]
        method = given.get("quant_method", "unknown") if isinstance(given, Mapping) else given
        raise UserError(
            f"quantization_config with quant_method={method!r} is not supported: "
            "allowed are bf16, fp16 and float32 weights; use an unquantized checkpoint"
        )
    for key, supported in FIXED_VALUES.items():
        value = hf.get(key, supported)
        if value is not None and value != supported:
            raise UserError(
                f"{key}={value!r} is not supported: allowed is {supported!r}; choose another model"
            )


def _sequence(hf: Mapping[str, Any], key: str, kind: type) -> Any:
    """A list or a text, or None where the key is absent."""
    value = hf.get(key)
    if value is not None and not isinstance(value, kind | tuple):
        raise UserError(f"{key}={value!r}: must be a {kind.__name__}; correct the configuration")
    return value


def _positive(hf: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = hf.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        what = f"{key}={value!r} is not usable" if key in hf else f"{key} is missing from the configuration"
        raise UserError(f"{what}: it must be a whole number of at least 1; correct the configuration")
    return value


def _number(hf: Mapping[str, Any], key: str, default: float, *, zero: bool = False) -> float:
    """A finite number above 0, or 0 where `zero` allows it; absent or null is the default."""
    value = hf.get(key)
    if value is None:
        return default
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not usable or value < 0 or (value == 0 and not zero):
        raise UserError(
            f"{key}={value!r} is not usable: it must be a number above 0; correct the configuration"
        )
    return float(value)


def _token(hf: Mapping[str, Any], key: str) -> int | None:
    value = hf.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise UserError(f"{key}={value!r}: must be a token id or null")
    return value


def _dense_layers(hf: Mapping[str, Any], layers: int) -> int:
    """How many leading layers have a dense MLP: from `mlp_layer_types`, else `first_k_dense_replace`."""
    kinds = _sequence(hf, "mlp_layer_types", list)
    if not kinds:
        dense = hf.get("first_k_dense_replace", 0)
        if isinstance(dense, bool) or not isinstance(dense, int) or dense < 0:
            raise UserError(f"first_k_dense_replace={dense!r} must be a whole number of at least 0")
        return dense
    dense = next((i for i, kind in enumerate(kinds) if kind != "dense"), len(kinds))
    if len(kinds) != layers or any(kind != "sparse" for kind in kinds[dense:]):
        raise UserError(
            f"mlp_layer_types must be 'dense' for the first layers and 'sparse' for the rest of {layers}; "
            f"got {kinds}"
        )
    return dense


def _nextn_layers(hf: Mapping[str, Any]) -> int:
    value = hf.get("num_nextn_predict_layers")
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UserError(
            f"num_nextn_predict_layers={value!r} must be a whole number of at least 0; "
            "correct the configuration"
        )
    return value


def _rope(hf: Mapping[str, Any], dim: int) -> RopeConfig:
    """Both spellings: `rope_scaling` + `rope_theta`, and `rope_parameters` with the theta inside."""
    if dim % 2:
        raise UserError(f"qk_rope_head_dim={dim} must be even: values are rotated in pairs")
    given = hf.get("rope_parameters") or hf.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise UserError(f"rope_parameters or rope_scaling {given!r}: must be an object, or absent")
    theta = _number(given, "rope_theta", _number(hf, "rope_theta", 10000.0))
    kind = str(given.get("rope_type", given.get("type", "default"))).lower()
    if kind == "default":
        return RopeConfig(theta=theta, dim=dim)
    if "yarn" not in kind:
        raise UserError(
            f"rope type {kind!r} is not supported: allowed are default and yarn; choose another model"
        )
    longest = _positive(hf, "max_position_embeddings")
    scaled = given.get("attention_factor") is not None
    return RopeConfig(
        theta=theta,
        dim=dim,
        factor=_number(given, "factor", 1.0),
        original_max_position_embeddings=_positive(
            given, "original_max_position_embeddings", default=longest
        ),
        beta_fast=_number(given, "beta_fast", 32.0),
        beta_slow=_number(given, "beta_slow", 1.0),
        mscale=_number(given, "mscale", 1.0),
        mscale_all_dim=_number(given, "mscale_all_dim", 0.0, zero=True),
        attention_factor=_number(given, "attention_factor", 1.0) if scaled else None,
    )


def _indexer_full(hf: Mapping[str, Any], layers: int) -> tuple[bool, ...]:
    """Which layers own an indexer: `indexer_types`, else `index_topk_pattern`, else frequency and offset."""
    by_rule = _indexer_full_by_rule(hf, layers)
    types = _sequence(hf, "indexer_types", list)
    full = by_rule
    if types:
        if len(types) < layers or any(kind not in ("full", "shared") for kind in types):
            raise UserError(
                f"indexer_types must name 'full' or 'shared' for each of {layers} layers; got {types}"
            )
        full = tuple(kind == "full" for kind in types[:layers])
        said = hf.get("index_topk_pattern") is not None or hf.get("index_topk_freq") is not None
        if said and full != by_rule:
            logger.warning("indexer_types and index_topk_pattern/freq disagree: indexer_types is used")
    if not full[0]:
        raise UserError(
            "layer 0 shares an indexer but no layer stands before it: make the first layer 'full'"
        )
    return full


def _indexer_full_by_rule(hf: Mapping[str, Any], layers: int) -> tuple[bool, ...]:
    pattern = _sequence(hf, "index_topk_pattern", str)
    if pattern is not None:
        if any(letter not in "FS" for letter in pattern):
            raise UserError(f"index_topk_pattern={pattern!r} may hold F (full) and S (shared) only")
        return tuple(i >= len(pattern) or pattern[i] == "F" for i in range(layers))
    freq, offset = hf.get("index_topk_freq"), hf.get("index_skip_topk_offset")
    freq, offset = 1 if freq is None else freq, 2 if offset is None else offset
    if not isinstance(freq, int) or freq < 1:
        raise UserError(f"index_topk_freq={freq!r} must be a whole number of at least 1")
    return tuple(max(i - offset + 1, 0) % freq == 0 for i in range(layers))


def _eos(hf: Mapping[str, Any]) -> tuple[int, ...]:
    eos = hf.get("eos_token_id")
    if eos is None:
        return ()
    tokens = tuple(eos) if isinstance(eos, list | tuple) else (eos,)
    if any(isinstance(token, bool) or not isinstance(token, int) for token in tokens):
        raise UserError(f"eos_token_id={eos!r}: must be a token id or a list of token ids")
    return tokens


def _check_sizes(config: ModelConfig) -> None:
    experts, groups, kept = config.n_routed_experts, config.n_group, config.topk_group
    if experts % groups or (groups > 1 and experts // groups < 2):
        raise UserError(
            f"n_group={groups} does not divide n_routed_experts={experts} into groups of at least 2; "
            "correct n_group"
        )
    if kept > groups:
        raise UserError(f"topk_group={kept} must not exceed n_group={groups}")
    if kept * (experts // groups) < config.num_experts_per_tok:
        raise UserError(
            f"num_experts_per_tok={config.num_experts_per_tok} exceeds the {kept * (experts // groups)} "
            "experts of the kept groups; raise topk_group"
        )
    if config.index_head_dim < config.qk_rope_head_dim:
        raise UserError(
            f"index_head_dim={config.index_head_dim} must be at least "
            f"qk_rope_head_dim={config.qk_rope_head_dim}"
        )
    wrong = [i for i in config.eos_token_ids if not 0 <= i < config.vocab_size]
    if wrong:
        raise UserError(f"eos_token_id {wrong[0]} must lie in 0..{config.vocab_size - 1}")
