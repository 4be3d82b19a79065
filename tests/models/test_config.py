"""Reading config.json: golden values, both spellings, layer sharing, and every refusal."""

from __future__ import annotations

import json
import logging
import re

import pytest
import torch

from paths.api import UserError
from paths.models.config import ModelConfig, read_hf_config
from paths.models.rope import RopeConfig, rope_tables
from tests.models.hf_configs import MODELS, NAMES, hf, shipped


def test_every_shipped_model_is_named_here():
    assert sorted(path.stem for path in MODELS.glob("*.yaml")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_shipped_models_are_valid(name):
    model = shipped(name)
    assert model["name"] == name
    config = ModelConfig.from_hf(model["hf_config"])
    assert config.kv_lora_rank == 512 and config.qk_rope_head_dim == 64 and config.index_head_dim == 128


def test_softmax_scales():
    assert ModelConfig.from_hf(hf("v32")).softmax_scale == pytest.approx(0.1352337788608801, rel=1e-12)
    assert ModelConfig.from_hf(hf("glm52")).softmax_scale == 0.0625


@pytest.mark.parametrize(
    ("name", "golden"),
    [
        (
            "v32",
            {
                0: 1.0,
                1: 7.498942093325e-01,
                9: 7.498942093325e-02,
                10: 5.623413251903e-02,
                11: 3.900692656714e-02,
                16: 5.5e-03,
                22: 1.778279410039e-04,
                23: 3.333803580408e-05,
                31: 3.333803580408e-06,
            },
        ),
        ("glm52", {1: 6.085250180e-01, 16: 3.535533906e-04, 31: 2.054147263e-07}),
    ],
)
def test_golden_frequencies(name, golden):
    frequencies = ModelConfig.from_hf(hf(name)).rope.inverse_frequencies()
    assert len(frequencies) == 32
    for i, value in golden.items():
        assert frequencies[i] == pytest.approx(value, rel=1e-9)


def test_golden_frequencies_of_a_million():
    frequencies = RopeConfig(theta=1e6, dim=64).inverse_frequencies()
    assert frequencies[1] == pytest.approx(6.493816316e-01, rel=1e-9)
    assert frequencies[16] == pytest.approx(1e-3, rel=1e-12)
    assert frequencies[31] == pytest.approx(1.539926526e-06, rel=1e-9)


@pytest.mark.parametrize("dim", [2, 16, 64])
@pytest.mark.parametrize("original", [1, 4, 64, 4096])
def test_yarn_boundaries(dim, original):
    """Tiny sizes: bounds may meet or turn negative; frequencies stay between interpolated and plain."""
    rope = RopeConfig(theta=10000.0, dim=dim, factor=4.0, original_max_position_embeddings=original)
    plain = RopeConfig(theta=10000.0, dim=dim).inverse_frequencies()
    for blended, full in zip(rope.inverse_frequencies(), plain, strict=True):
        assert full / 4 <= blended <= full


def test_yarn_bounds_that_meet_do_not_divide_by_zero():
    rope = RopeConfig(theta=1e9, dim=4, factor=4.0, original_max_position_embeddings=100, beta_fast=1.0)
    low, high = rope._ramp_bounds()
    assert low < high


def test_float32_angle_recipe():
    """Position 1048575 at frequency 1 of theta 8e6: one float32 product, 638084.125."""
    inverse = torch.tensor(RopeConfig(theta=8e6, dim=64).inverse_frequencies(), dtype=torch.float64).float()
    assert (torch.tensor(1048575.0) * inverse[1]).item() == 638084.125
    cos, sin = rope_tables(RopeConfig(theta=8e6, dim=64), 1048576)
    angle = torch.tensor(638084.125, dtype=torch.float64)
    assert cos[1048575, 1].item() == pytest.approx(angle.cos().item(), abs=1e-6)
    assert sin[1048575, 1].item() == pytest.approx(angle.sin().item(), abs=1e-6)
    assert cos.dtype is torch.float32 and cos.shape == (1048576, 32)


def test_position_zero_is_the_identity_and_the_table_has_no_switch():
    rope = ModelConfig.from_hf(hf("v32")).rope
    cos, sin = rope_tables(rope, 5000)
    assert torch.equal(cos[0], torch.ones(32)) and torch.equal(sin[0], torch.zeros(32))
    # one set of frequencies below and above the original 4096 positions
    inverse = torch.tensor(rope.inverse_frequencies(), dtype=torch.float64).float()
    for position in (1, 4095, 4096, 4999):
        assert torch.equal(cos[position], (torch.tensor(float(position)) * inverse).cos())


def test_both_rope_spellings():
    old = ModelConfig.from_hf(hf())
    scaling = hf()["rope_scaling"]
    new = {"rope_theta": 10000.0, "rope_type": "yarn"} | {k: v for k, v in scaling.items() if k != "type"}
    assert ModelConfig.from_hf(hf(rope_scaling=None, rope_theta=None, rope_parameters=new)) == old


def test_missing_mscale_means_no_correction():
    scaling = {k: v for k, v in hf()["rope_scaling"].items() if k != "mscale_all_dim"}
    config = ModelConfig.from_hf(hf(rope_scaling=scaling))
    assert config.softmax_scale == 128**-0.5
    assert config.rope.table_scale == pytest.approx(0.1 * 1.3862943611 + 1.0)


def test_defaults_of_the_two_flavours():
    v32, glm = ModelConfig.from_hf(hf()), ModelConfig.from_hf(hf("tiny_glm", indexer_rope_interleave=None))
    assert (v32.rope_interleave, v32.indexer_rope_interleave) == (True, False)
    assert (glm.rope_interleave, glm.indexer_rope_interleave) == (True, True)
    assert ModelConfig.from_hf(hf("tiny_glm", indexer_rope_interleave=False)).indexer_rope_interleave is False


def test_eos_may_be_one_or_several():
    assert ModelConfig.from_hf(hf()).eos_token_ids == (1,)
    assert ModelConfig.from_hf(hf("glm52")).eos_token_ids == (154820, 154827, 154829)
    assert ModelConfig.from_hf(hf(eos_token_id=None)).eos_token_ids == ()


def test_glm52_shares_by_frequency():
    full = ModelConfig.from_hf(hf("glm52")).indexer_full
    assert [i for i, f in enumerate(full) if f] == [0, 1, 2, *range(6, 75, 4)]
    assert sum(full) == 21


def test_pattern_and_types():
    assert ModelConfig.from_hf(hf(index_topk_pattern="FS")).indexer_full == (True, False, True, True)
    types = ["full", "shared", "shared", "full"]
    assert ModelConfig.from_hf(hf(indexer_types=types)).indexer_full == (True, False, False, True)


def test_types_win_over_frequency_with_a_warning(caplog):
    types = ["full", "shared", "full", "full"]
    with caplog.at_level(logging.WARNING):
        config = ModelConfig.from_hf(hf(indexer_types=types, index_topk_freq=2, index_skip_topk_offset=1))
    assert config.indexer_full == (True, False, True, True)
    assert "indexer_types is used" in caplog.text


def test_dense_layers_in_both_spellings():
    config = ModelConfig.from_hf(hf(mlp_layer_types=["dense", "dense", "sparse", "sparse"]))
    assert [config.is_moe(i) for i in range(4)] == [False, False, True, True]
    config = ModelConfig.from_hf(hf(moe_layer_freq=2))
    assert [config.is_moe(i) for i in range(4)] == [False, False, True, False]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "unknown architecture 'LlamaForCausalLM'.*DeepseekV32"),
        ({"architectures": None, "model_type": "llama"}, "unknown architecture 'llama'.*GlmMoeDsa"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quant_method='fp8'.*unquantized"),
        ({"q_lora_rank": None}, "q_lora_rank is missing"),
        ({"index_topk": None}, "index_topk is missing"),
        ({"hidden_size": 0}, "hidden_size=0"),
        ({"hidden_size": 2.5}, "hidden_size=2.5"),
        ({"n_group": 3}, "n_group=3 does not divide n_routed_experts=8"),
        ({"n_group": 8}, "groups of at least 2"),
        ({"topk_group": 3}, "topk_group=3 must not exceed n_group=2"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok=5 exceeds the 4"),
        ({"num_key_value_heads": 4}, "num_key_value_heads=4 must equal"),
        ({"scoring_func": "softmax"}, "scoring_func='softmax'.*'sigmoid'"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings=True"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "'linear'.*default and yarn"),
        ({"qk_rope_head_dim": 63}, "qk_rope_head_dim=63 must be even"),
        ({"index_head_dim": 32}, "index_head_dim=32 must be at least"),
        ({"indexer_types": ["shared", "full", "full", "full"]}, "layer 0 shares an indexer"),
        ({"indexer_types": ["full", "full"]}, "for each of 4 layers"),
        ({"indexer_types": ["full", "full", "half", "full"]}, "'full' or 'shared'"),
        ({"index_topk_pattern": "FXFF"}, "index_topk_pattern='FXFF'"),
        ({"index_topk_freq": 0}, "index_topk_freq=0"),
        ({"mlp_layer_types": ["sparse", "dense", "sparse", "sparse"]}, "mlp_layer_types"),
        ({"eos_token_id": 2048}, "eos_token_id 2048"),
    ],
)
def test_refusals_name_the_value(changes, words):
    with pytest.raises(UserError, match=words) as error:
        ModelConfig.from_hf(hf(**changes))
    assert "\n" not in str(error.value)


def test_read_hf_config(tmp_path):
    with pytest.raises(UserError, match=r"cannot read .*config.json"):
        read_hf_config(tmp_path)
    (tmp_path / "config.json").write_text("{half")
    with pytest.raises(UserError, match="not valid JSON"):
        read_hf_config(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(UserError, match="holds a list"):
        read_hf_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(hf()))
    assert ModelConfig.from_hf(read_hf_config(tmp_path)) == ModelConfig.from_hf(hf())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"routed_scaling_factor": "x"}, "routed_scaling_factor='x'"),
        ({"rms_norm_eps": -1.0}, "rms_norm_eps=-1.0"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps=nan"),
        ({"eos_token_id": ["a"]}, "eos_token_id"),
        ({"bos_token_id": "a"}, "bos_token_id='a'"),
        ({"rope_parameters": 3}, "must be an object"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": "four"}}, "factor='four'"),
        ({"quantization_config": "fp8"}, "quantization_config"),
    ],
)
def test_values_of_the_wrong_type_are_one_line(change, said):
    with pytest.raises(UserError, match=re.escape(said)) as caught:
        ModelConfig.from_hf(hf(**change))
    assert "\n" not in str(caught.value)
