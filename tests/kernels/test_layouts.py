"""Bytes per token, allocation, and the resolution of auto."""

from __future__ import annotations

import pytest
import torch

from paths.api import UserError
from paths.engine import batch
from paths.kernels import cache_bytes
from paths.kernels.cache_bytes import (
    cache_bytes_per_token,
    kv_row_bytes,
    resolve_hadamard,
    resolve_index_dtype,
    resolve_kv_dtype,
)
from paths.kernels.layouts import allocate_caches, ds_mla_latent
from paths.models.config import ModelConfig
from tests.kernels.inputs import CACHE_DTYPES, CPU
from tests.models.hf_configs import hf


@pytest.mark.parametrize(
    ("name", "kv_dtype", "index_dtype", "expected"),
    [
        ("v32", "fp8_ds_mla", "fp8", 48_068),
        ("v32", "bf16", "fp8", 78_324),
        ("glm52", "fp8_ds_mla", "fp8", 53_940),
        ("tiny_glm", "float32", "float32", 4 * 576 * 4 + 2 * 512),
    ],
)
def test_bytes_per_token(name, kv_dtype, index_dtype, expected):
    config = ModelConfig.from_hf(hf(name))
    assert cache_bytes_per_token(config, kv_dtype=kv_dtype, index_dtype=index_dtype) == expected


@pytest.mark.parametrize(("kv_dtype", "index_dtype"), CACHE_DTYPES)
def test_allocation_has_the_promised_size(kv_dtype, index_dtype):
    config = ModelConfig.from_hf(hf("tiny_glm"))
    caches = allocate_caches(config, num_blocks=3, kv_dtype=kv_dtype, index_dtype=index_dtype, device=CPU)
    assert [cache.index is not None for cache in caches] == list(config.indexer_full)
    size = sum(t.nbytes for cache in caches for t in (cache.kv, cache.index) if t is not None)
    assert size == 3 * 64 * cache_bytes_per_token(config, kv_dtype=kv_dtype, index_dtype=index_dtype)
    assert all(cache.k_scale.item() == 1.0 and cache.k_scale.dtype is torch.float32 for cache in caches)


def test_packed_latent_needs_tiles_of_128():
    config = ModelConfig.from_hf(hf(kv_lora_rank=96))
    with pytest.raises(
        UserError, match="fp8_ds_mla needs kv_lora_rank in multiples of 128, the model has 96"
    ):
        kv_row_bytes(config, "fp8_ds_mla")
    assert ds_mla_latent(656, 64) == 512


def test_auto():
    assert resolve_kv_dtype("auto", "bf16") == "bf16"
    assert resolve_kv_dtype("fp8", "bf16") == "fp8"
    assert resolve_index_dtype("auto", kv_dtype="fp8_ds_mla", dtype="bf16") == "fp8"
    assert resolve_index_dtype("auto", kv_dtype="bf16", dtype="bf16") == "bf16"
    assert resolve_index_dtype("float32", kv_dtype="fp8", dtype="bf16") == "float32"
    with pytest.raises(UserError, match=r"kv_dtype='int8'.*fp8_ds_mla"):
        resolve_kv_dtype("int8", "bf16")
    with pytest.raises(UserError, match="index_dtype='fp8_ds_mla'"):
        resolve_index_dtype("fp8_ds_mla", kv_dtype="fp8", dtype="bf16")


@pytest.mark.parametrize("kv_dtype", cache_bytes.KV_DTYPES)
@pytest.mark.parametrize("index_dtype", cache_bytes.INDEX_DTYPES)
def test_predicted_bytes_are_those_that_are_allocated(kv_dtype, index_dtype):
    config = ModelConfig.from_hf(hf("tiny_glm"))
    caches = allocate_caches(config, num_blocks=12, kv_dtype=kv_dtype, index_dtype=index_dtype, device=CPU)
    stored = [t for cache in caches for t in (cache.kv, cache.index) if t is not None]
    predicted = cache_bytes.cache_bytes(config, pages=11, kv_dtype=kv_dtype, index_dtype=index_dtype)
    assert predicted == sum(tensor.nbytes for tensor in stored)
    assert cache_bytes.PAGE_SIZE == batch.PAGE_SIZE


def test_hadamard_follows_the_index_cache():
    assert [resolve_hadamard(None, index_dtype=dtype) for dtype in ("fp8", "bf16")] == [True, False]
    assert resolve_hadamard(False, index_dtype="fp8") is False
    assert resolve_hadamard(True, index_dtype="bf16") is True
