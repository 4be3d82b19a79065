"""Loading safetensors, refusing what does not fit, and dummy weights."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import save_file

from paths.api import ModelSource, UserError
from paths.engine.parallel import ParallelGroup
from paths.kernels.moe_route.torch_impl import moe_route
from paths.models.config import ModelConfig
from paths.models.dummy import DummyWeights
from paths.models.weights import assemble, digest, load_weights, named_tensors
from tests.models.hf_configs import hf

CPU = torch.device("cpu")
SMALL = {
    "vocab_size": 32,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "q_lora_rank": 12,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 5,
    "intermediate_size": 24,
    "moe_intermediate_size": 8,
    "n_routed_experts": 4,
    "index_n_heads": 16,
    "index_head_dim": 8,
    "index_topk": 4,
    "indexer_types": ["full", "shared"],
}
CONFIG = ModelConfig.from_hf(hf(**SMALL))


class Recorder:
    """A source that remembers what was asked."""

    def __init__(self):
        self.inner, self.tensors = DummyWeights(CONFIG, seed=3), {}

    def get(self, name, shape):
        self.tensors[name] = self.inner.get(name, shape).contiguous()
        return self.tensors[name]


@pytest.fixture
def tensors():
    recorder = Recorder()
    assemble(recorder, CONFIG, dtype=torch.float32, device=CPU)
    return dict(recorder.tensors)


def load(folder, dtype=torch.float32):
    source = ModelSource(name="x", hf_config={}, checkpoint=str(folder))
    return load_weights(source, CONFIG, dtype=dtype, device=CPU)


def expected():
    return assemble(DummyWeights(CONFIG, seed=3), CONFIG, dtype=torch.float32, device=CPU)


def test_one_file(tmp_path, tensors):
    save_file(tensors, tmp_path / "model.safetensors")
    assert digest(load(tmp_path)) == digest(expected())


def test_shards_with_tensors_that_are_not_needed(tmp_path, tensors):
    tensors |= {
        "model.layers.2.enorm.weight": torch.zeros(16),
        "model.layers.2.self_attn.indexer.wk.weight": torch.zeros(8, 16),
        "model.layers.1.self_attn.indexer.wk.weight": torch.zeros(1),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(2),
    }
    names = sorted(tensors)
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2])):
        file_name = f"model-{number}.safetensors"
        save_file({name: tensors[name] for name in part}, tmp_path / file_name)
        weight_map |= dict.fromkeys(part, file_name)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert digest(load(tmp_path)) == digest(expected())
    (tmp_path / "model-1.safetensors").unlink()
    with pytest.raises(UserError, match=r"model-1.safetensors is missing"):
        load(tmp_path)
    index.write_text("{}")
    with pytest.raises(UserError, match="no readable weight_map"):
        load(tmp_path)


def test_hf_names(tensors):
    assert tensors["model.layers.0.self_attn.kv_a_proj_with_mqa.weight"].shape == (12, 16)
    assert tensors["model.layers.0.self_attn.indexer.k_norm.bias"].shape == (8,)
    assert tensors["model.layers.0.mlp.gate_proj.weight"].shape == (24, 16)
    assert tensors["model.layers.1.mlp.experts.3.down_proj.weight"].shape == (16, 8)
    assert tensors["model.layers.1.mlp.gate.e_score_correction_bias"].shape == (4,)
    assert not any(name.startswith("model.layers.1.self_attn.indexer") for name in tensors)


def test_kv_b_is_split_per_head(tensors):
    kv_b = tensors["model.layers.0.self_attn.kv_b_proj.weight"].view(2, 6 + 5, 8)
    attention = expected().layers[0].attention
    assert torch.equal(attention.w_uk, kv_b[:, :6])
    assert torch.equal(attention.w_uv, kv_b[:, 6:])


def test_what_stays_float32(tmp_path, tensors):
    save_file({name: t.to(torch.bfloat16) for name, t in tensors.items()}, tmp_path / "model.safetensors")
    kept = {
        name.rsplit(".", 1)[-1]
        for name, t in named_tensors(load(tmp_path, torch.bfloat16))
        if t.dtype is torch.float32
    }
    assert kept == {
        "input_layernorm",
        "post_attention_layernorm",
        "q_a_layernorm",
        "kv_a_layernorm",
        "k_norm_weight",
        "k_norm_bias",
        "gate",
        "e_score_correction_bias",
        "norm",
    }


@pytest.mark.parametrize("name", ["lm_head.weight", "model.layers.0.self_attn.indexer.wk.weight"])
def test_missing_tensor(tmp_path, tensors, name):
    del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=f"tensor {name} is missing") as error:
        load(tmp_path)
    assert "\n" not in str(error.value)


def test_wrong_shape(tmp_path, tensors):
    tensors["model.norm.weight"] = torch.zeros(17)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"model.norm.weight in .*model.safetensors has shape \[17\].*\[16\]"):
        load(tmp_path)


def test_quantized_tensor(tmp_path, tensors):
    name = "model.layers.0.self_attn.q_a_proj.weight"
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=f"{name}.*is quantized .float8_e4m3fn"):
        load(tmp_path)


@pytest.mark.parametrize("keep", [0.5, 0.0, 4])
def test_truncated_file(tmp_path, tensors, keep):
    path = tmp_path / "model.safetensors"
    save_file(tensors, path)
    content = path.read_bytes()
    path.write_bytes(content[: keep if isinstance(keep, int) else int(len(content) * keep)])
    with pytest.raises(UserError, match=r"model.safetensors is truncated") as error:
        load(tmp_path)
    assert "\n" not in str(error.value)


def test_missing_folder(tmp_path):
    with pytest.raises(UserError, match=r"nowhere/model.safetensors is missing"):
        load(tmp_path / "nowhere")


def dummy(dtype=torch.bfloat16, seed=0, name="tiny_v32"):
    config = ModelConfig.from_hf(hf(name))
    source = ModelSource(name=name, hf_config={}, checkpoint="dummy")
    return config, load_weights(source, config, dtype=dtype, device=CPU, seed=seed)


def test_two_dummy_loads_are_equal_whatever_the_threads():
    threads = torch.get_num_threads()
    first = digest(dummy()[1])
    torch.set_num_threads(1)
    try:
        assert digest(dummy()[1]) == first
    finally:
        torch.set_num_threads(threads)
    assert digest(dummy(seed=1)[1]) != first


@pytest.mark.parametrize("name", ["tiny_v32", "tiny_glm"])
def test_dummy_weights_are_finite_and_of_sensible_scale(name):
    for tensor_name, tensor in named_tensors(dummy(name=name)[1]):
        values = tensor.float()
        assert values.isfinite().all(), tensor_name
        assert 0.001 < values.abs().max() < 10, tensor_name
        assert values.unique().numel() > 1, tensor_name


def test_dummy_routing_is_balanced():
    config, weights = dummy(torch.float32)
    moe = weights.layers[1].moe
    x = torch.randn(4096, config.hidden_size, generator=torch.Generator().manual_seed(0))
    _, ids = moe_route(
        x,
        moe.gate,
        moe.e_score_correction_bias,
        n_group=config.n_group,
        topk_group=config.topk_group,
        top_k=config.num_experts_per_tok,
        norm=True,
        scaling=2.5,
    )
    load = torch.bincount(ids.flatten(), minlength=8) / ids.numel()
    assert load.min() > 0.09 and load.max() < 0.16  # 0.125 each
    assert torch.allclose(moe.gate.norm(dim=-1), torch.ones(8))
    assert moe.e_score_correction_bias.abs().max() > 0


def test_norms_of_dummy_weights_are_near_one():
    _, weights = dummy()
    assert math.isclose(weights.norm.mean().item(), 1.0, abs_tol=0.05)


def test_more_than_one_rank_is_refused():
    with pytest.raises(UserError, match="gpus=2"):
        ParallelGroup(world_size=2)
    x = torch.ones(2)
    assert ParallelGroup().all_reduce(x) is x
