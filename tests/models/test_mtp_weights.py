"""MTP layers in a checkpoint: loaded when asked for, shared tensors, and what a user may get wrong."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from paths.api import ModelSource, UserError
from paths.kernels.cache_bytes import cache_bytes_per_token
from paths.kernels.layouts import allocate_caches
from paths.models.config import ModelConfig
from paths.models.train.export import save_model
from paths.models.weights import digest, load_weights
from tests.model_driver import CPU
from tests.models.hf_configs import NAMES, hf
from tests.models.mtp_reference import HF, parameters

CONFIG = ModelConfig.from_hf(HF)
PREFIX = "model.layers.2"


@pytest.fixture
def folder(tmp_path):
    save_model(tmp_path, HF, parameters(CONFIG), dtype=torch.float32)
    return tmp_path


def load(folder, *, mtp, config=CONFIG):
    source = ModelSource(name="mtp", hf_config={}, checkpoint=str(folder))
    return load_weights(source, config, dtype=torch.float32, device=CPU, mtp=mtp)


def change(folder, drop=(), **added):
    tensors = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if name not in drop}
    save_file(kept | added, folder / "model.safetensors")


def test_layers_are_loaded_only_for_drafts(folder):
    without, with_mtp = load(folder, mtp=0), load(folder, mtp=5)
    assert without.mtp == ()
    assert len(with_mtp.mtp) == 1
    assert with_mtp.mtp[0].layer.indexer is not None
    assert with_mtp.mtp[0].enorm.dtype is torch.float32
    change(folder, drop=[name for name in load_file(folder / "model.safetensors") if PREFIX in name])
    assert digest(load(folder, mtp=0)) == digest(without)


def test_missing_copies_are_the_main_tensors(folder):
    weights = load(folder, mtp=1)
    assert weights.mtp[0].embed_tokens is weights.embed_tokens
    assert weights.mtp[0].head is weights.lm_head
    added = weights.num_bytes - load(folder, mtp=0).num_bytes
    tensors = load_file(folder / "model.safetensors").items()
    assert added == sum(tensor.nbytes for name, tensor in tensors if name.startswith(PREFIX))


def test_copies_in_the_checkpoint_are_used_where_they_differ(folder):
    main = load(folder, mtp=0)
    copies = {
        f"{PREFIX}.embed_tokens.weight": main.embed_tokens.clone(),
        f"{PREFIX}.shared_head.head.weight": main.lm_head + 1,
    }
    change(folder, **copies)
    weights = load(folder, mtp=1)
    assert weights.mtp[0].embed_tokens is weights.embed_tokens
    assert torch.equal(weights.mtp[0].head, main.lm_head + 1)


def test_a_model_without_mtp_layers_is_refused(folder):
    none = ModelConfig.from_hf(HF | {"num_nextn_predict_layers": 0})
    with pytest.raises(UserError, match=r"mtp=3: the model has no MTP layer .* set mtp=0"):
        load(folder, mtp=3, config=none)
    assert load(folder, mtp=0, config=none).mtp == ()


def test_a_checkpoint_without_the_promised_layer_is_refused(folder):
    change(folder, drop=[f"{PREFIX}.eh_proj.weight"])
    with pytest.raises(UserError, match=rf"tensor {PREFIX}.eh_proj.weight is missing: .* set mtp=0"):
        load(folder, mtp=1)


def test_a_layer_that_lacks_one_tensor_is_refused(folder):
    change(folder, drop=[f"{PREFIX}.hnorm.weight"])
    with pytest.raises(UserError, match=rf"tensor {PREFIX}.hnorm.weight is missing"):
        load(folder, mtp=1)


@pytest.mark.parametrize("value", [-1, True, "1", 1.0])
def test_a_count_that_is_none_is_refused(value):
    with pytest.raises(UserError, match="num_nextn_predict_layers="):
        ModelConfig.from_hf(HF | {"num_nextn_predict_layers": value})


@pytest.mark.parametrize("name", NAMES)
def test_shipped_models_have_one_layer(name):
    config = ModelConfig.from_hf(hf(name))
    assert config.mtp_layers(0) == 0
    assert config.mtp_layers(3) == 1
    assert config.reuses_selection(1) == (name == "glm52")
    assert not config.reuses_selection(0)


def test_dummy_weights_cover_the_layer():
    config = ModelConfig.from_hf(hf("tiny_glm"))  # whose last layers share an indexer
    source = ModelSource(name="dummy", hf_config={}, checkpoint="dummy")
    weights = load_weights(source, config, dtype=torch.bfloat16, device=CPU, mtp=1)
    (mtp,) = weights.mtp
    assert mtp.embed_tokens is weights.embed_tokens
    assert mtp.eh_proj.dtype is torch.bfloat16
    assert mtp.layer.indexer is not None
    assert mtp.layer.moe is not None
    assert (mtp.enorm - 1).abs().max() < 1


def test_every_mtp_layer_has_a_cache_of_its_own():
    config = ModelConfig.from_hf(hf("tiny_glm"))
    caches = allocate_caches(
        config, num_blocks=2, kv_dtype="bf16", index_dtype="fp8", device=CPU, mtp_layers=2
    )
    assert [cache.index is not None for cache in caches] == [True, True, False, False, True, True]
    tensors = [t for cache in caches for t in (cache.kv, cache.index) if t is not None]
    assert len({t.data_ptr() for t in tensors}) == len(tensors) == 10
    per_token = cache_bytes_per_token(config, kv_dtype="bf16", index_dtype="fp8", mtp_layers=2)
    assert sum(t.nbytes for t in tensors) == 2 * 64 * per_token
