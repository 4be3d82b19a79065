"""Bytes of a token in the paged caches, and what `auto` means for their dtypes. Imports no torch."""

from __future__ import annotations

from paths.api import UserError
from paths.models.config import ModelConfig

PAGE_SIZE = 64  # tokens of one page
KV_DTYPES = ("float32", "bf16", "fp8", "fp8_ds_mla")
INDEX_DTYPES = ("float32", "bf16", "fp8")
DS_MLA_TILE = 128  # latent values that share one scale in fp8_ds_mla


def resolve_kv_dtype(requested: str, dtype: str) -> str:
    """`auto` means the model's dtype. Raises UserError for an unknown name."""
    return _resolve("kv_dtype", requested, KV_DTYPES, auto=dtype)


def resolve_index_dtype(requested: str, *, kv_dtype: str, dtype: str) -> str:
    """`auto` means fp8 beside an fp8 cache, else the model's dtype. Raises UserError for an unknown name."""
    auto = "fp8" if kv_dtype.startswith("fp8") else dtype
    return _resolve("index_dtype", requested, INDEX_DTYPES, auto=auto)


def resolve_hadamard(requested: bool | None, *, index_dtype: str) -> bool:
    """None means on with an fp8 index cache, off otherwise. `index_dtype` is resolved."""
    return index_dtype == "fp8" if requested is None else requested


def _resolve(key: str, requested: str, allowed: tuple[str, ...], *, auto: str) -> str:
    if requested != "auto" and requested not in allowed:
        raise UserError(f"{key}={requested!r} is unknown: allowed are auto, {', '.join(allowed)}")
    return auto if requested == "auto" else requested


def kv_row_bytes(config: ModelConfig, kv_dtype: str) -> int:
    """Bytes of one token in one layer's main cache. Raises UserError where the layout does not fit."""
    latent, rope = config.kv_lora_rank, config.qk_rope_head_dim
    if kv_dtype == "fp8_ds_mla":
        if latent % DS_MLA_TILE:
            raise UserError(
                f"kv_dtype=fp8_ds_mla needs kv_lora_rank in multiples of {DS_MLA_TILE}, "
                f"the model has {latent}: use kv_dtype=fp8 or bf16"
            )
        return latent + 4 * (latent // DS_MLA_TILE) + 2 * rope
    return (latent + rope) * {"float32": 4, "bf16": 2, "fp8": 1}[kv_dtype]


def index_row_bytes(config: ModelConfig, index_dtype: str) -> int:
    """Bytes of one token in one indexer's cache: an fp8 key carries a float32 scale."""
    dim = config.index_head_dim
    return {"float32": 4 * dim, "bf16": 2 * dim, "fp8": dim + 4}[index_dtype]


def cache_bytes_per_token(
    config: ModelConfig, *, kv_dtype: str, index_dtype: str, mtp_layers: int = 0
) -> int:
    """Bytes of one token over all layers; only layers that own an indexer have an index cache."""
    layers = range(config.num_hidden_layers + mtp_layers)
    indexers = sum(config.owns_indexer(layer) for layer in layers)
    return len(layers) * kv_row_bytes(config, kv_dtype) + indexers * index_row_bytes(config, index_dtype)


def cache_bytes(
    config: ModelConfig, *, pages: int, kv_dtype: str, index_dtype: str, mtp_layers: int = 0
) -> int:
    """Bytes of caches with room for `pages` pages of tokens, and the null page beside them."""
    per_token = cache_bytes_per_token(
        config, kv_dtype=kv_dtype, index_dtype=index_dtype, mtp_layers=mtp_layers
    )
    return (pages + 1) * PAGE_SIZE * per_token
