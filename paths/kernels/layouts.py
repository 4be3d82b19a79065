"""Byte layouts of the paged caches: allocation, and typed views into packed rows; sizes: `cache_bytes`.

Views share the cache's memory. B blocks of `page` tokens; C latent, R rope and dI index head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from paths.engine.batch import PAGE_SIZE, LayerCache, torch_dtype
from paths.kernels.cache_bytes import DS_MLA_TILE, kv_row_bytes
from paths.kernels.cache_bytes import resolve_index_dtype as resolve_index_dtype
from paths.kernels.cache_bytes import resolve_kv_dtype as resolve_kv_dtype
from paths.models.config import ModelConfig

E4M3 = torch.float8_e4m3fn


def allocate_caches(
    config: ModelConfig,
    *,
    num_blocks: int,
    kv_dtype: str,
    index_dtype: str,
    device: torch.device,
    mtp_layers: int = 0,
) -> list[LayerCache]:
    """Zeroed caches, one per layer, those of `mtp_layers` behind those of the main model.

    Raises UserError where the layout does not fit the model.
    """
    row_bytes = kv_row_bytes(config, kv_dtype)
    width = row_bytes if kv_dtype == "fp8_ds_mla" else config.kv_lora_rank + config.qk_rope_head_dim
    element = {"float32": torch.float32, "bf16": torch.bfloat16, "fp8": E4M3, "fp8_ds_mla": torch.uint8}[
        kv_dtype
    ]

    def index_cache() -> Tensor:
        dim = config.index_head_dim
        if index_dtype == "fp8":
            return torch.zeros(num_blocks, PAGE_SIZE * (dim + 4), dtype=torch.uint8, device=device)
        return torch.zeros(num_blocks, PAGE_SIZE, dim, dtype=torch_dtype(index_dtype), device=device)

    return [
        LayerCache(
            kv=torch.zeros(num_blocks, PAGE_SIZE, width, dtype=element, device=device),
            kv_dtype=kv_dtype,
            k_scale=torch.ones((), dtype=torch.float32, device=device),
            index=index_cache() if config.owns_indexer(layer) else None,
            index_dtype=index_dtype,
        )
        for layer in range(config.num_hidden_layers + mtp_layers)
    ]


def ds_mla_views(kv: Tensor, rope_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Latent e4m3 `[B, page, C]`, scales float32 `[B, page, C / 128]`, rope bfloat16 `[B, page, R]`."""
    latent = ds_mla_latent(kv.shape[-1], rope_dim)
    scales_end = latent + 4 * (latent // DS_MLA_TILE)
    return (
        kv[..., :latent].view(E4M3),
        kv[..., latent:scales_end].view(torch.float32),
        kv[..., scales_end:].view(torch.bfloat16),
    )


def ds_mla_latent(row_bytes: int, rope_dim: int) -> int:
    """C of a packed row: row_bytes = C + 4 × C / 128 + 2 × R."""
    return (row_bytes - 2 * rope_dim) * DS_MLA_TILE // (DS_MLA_TILE + 4)


def index_views(index: Tensor) -> tuple[Tensor, Tensor]:
    """Of an fp8 index cache: keys e4m3 `[B, page, dI]` and scales float32 `[B, page]`.

    All keys of a block stand first, then all its scales: a token's key and scale are not neighbours.
    """
    keys_end = index.shape[1] - 4 * PAGE_SIZE
    keys = index[:, :keys_end].view(E4M3).unflatten(1, (PAGE_SIZE, keys_end // PAGE_SIZE))
    return keys, index[:, keys_end:].view(torch.float32)
