"""The fused model against transformers, and its two implementations against each other."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from paths.api import ModelSource, UserError
from paths.dsa_mrv2.kernels.describe import FUSED_OPS
from paths.dsa_mrv2.model import DsaModel
from paths.kernels.registry import Kernels
from paths.models.config import ModelConfig
from paths.models.weights import load_weights
from tests.model_driver import ModelDriver, build_model, score
from tests.oracle import FLAVOURS, oracle_logprobs, random_tokens, save_checkpoint

CPU = torch.device("cpu")
LENGTHS = (5, 100, 63, 130)  # below, far above and around index_topk 8 and the page of 64
TOLERANCE = 1e-4
IMPLEMENTATIONS = {"cpp": "cpp", "composed": "torch"}  # fused → shared ops


@pytest.fixture(scope="module", params=FLAVOURS)
def oracle(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    model = save_checkpoint(request.param, folder)
    hf_config = json.loads((folder / "config.json").read_text())
    config = ModelConfig.from_hf(hf_config)
    source = ModelSource(name="oracle", hf_config=hf_config, checkpoint=str(folder))
    weights = load_weights(source, config, dtype=torch.float32, device=CPU)
    tokens = [random_tokens(length, seed=length) for length in LENGTHS]
    return config, weights, tokens, [oracle_logprobs(model, sequence) for sequence in tokens]


def worst_error(config, weights, tokens, expected, *, chunk=64, padding=0, fused="cpp"):
    kernels = Kernels(CPU, IMPLEMENTATIONS[fused])
    driver = ModelDriver(build_model(DsaModel, config, weights, kernels=kernels, fused=fused), config)
    scores = score(driver, tokens, chunk=chunk, padding=padding)
    return max(float((a - b).abs().max()) for a, b in zip(scores, expected, strict=True))


@pytest.mark.parametrize("fused", IMPLEMENTATIONS)
@pytest.mark.parametrize("chunk", [1, 7, 64, 130])
def test_agrees_with_transformers(oracle, chunk, fused):
    assert worst_error(*oracle, chunk=chunk, padding=3, fused=fused) < TOLERANCE


def relayed(config):
    return replace(config, indexer_rope_interleave=not config.indexer_rope_interleave)


CONFIG_FAULTS = {
    "indexer RoPE layout": relayed,
    "attention RoPE layout": lambda config: replace(config, rope_interleave=False),
    "routed scaling": lambda config: replace(config, routed_scaling_factor=1.0),
    "weights not normed": lambda config: replace(config, norm_topk_prob=False),
    "selection too small": lambda config: replace(config, index_topk=7),
}


@pytest.mark.parametrize("fault", CONFIG_FAULTS)
def test_a_fault_in_the_configuration_shows(oracle, fault):
    config, *rest = oracle
    assert worst_error(CONFIG_FAULTS[fault](config), *rest) > 100 * TOLERANCE


def with_layers(weights, change):
    return replace(weights, layers=tuple(change(layer) for layer in weights.layers))


def without_index_bias(layer):
    if layer.indexer is None:
        return layer
    return replace(
        layer, indexer=replace(layer.indexer, k_norm_bias=torch.zeros_like(layer.indexer.k_norm_bias))
    )


def without_routing_bias(layer):
    if layer.moe is None:
        return layer
    zeros = torch.zeros_like(layer.moe.e_score_correction_bias)
    return replace(layer, moe=replace(layer.moe, e_score_correction_bias=zeros))


@pytest.mark.parametrize("change", [without_index_bias, without_routing_bias])
def test_a_dropped_bias_shows(oracle, change):
    config, weights, *rest = oracle
    assert worst_error(config, with_layers(weights, change), *rest) > 100 * TOLERANCE


def test_the_scale_of_the_absorbed_width_shows(oracle, monkeypatch):
    config, *rest = oracle
    wrong = (config.kv_lora_rank + config.qk_rope_head_dim) ** -0.5
    monkeypatch.setattr(ModelConfig, "softmax_scale", wrong)
    assert worst_error(config, *rest) > 100 * TOLERANCE


def wide_shared_expert(oracle):
    """The same model with its shared expert declared as two of half the width."""
    config, weights, *_ = oracle
    width = config.moe_intermediate_size

    def widen(layer):
        if layer.moe is None:
            return layer
        gate, up = layer.moe.shared.gate_up_proj.chunk(2)
        shared = replace(
            layer.moe.shared,
            gate_up_proj=torch.cat([gate, gate, up, up]),
            down_proj=torch.cat([layer.moe.shared.down_proj] * 2, dim=1),
        )
        return replace(layer, moe=replace(layer.moe, shared=shared))

    assert width == 32
    return replace(config, n_shared_experts=2), with_layers(weights, widen)


def test_several_shared_experts_are_one_wide_expert(oracle):
    """A shared expert that stands twice side by side counts twice."""
    config, weights, _, _ = oracle
    doubled_config, doubled = wide_shared_expert(oracle)
    models = [
        build_model(DsaModel, c, w, kernels=Kernels(CPU, "cpp"))
        for c, w in ((config, weights), (doubled_config, doubled))
    ]
    hidden = torch.randn(3, config.hidden_size)
    once, twice = (model._feed_forward(model.layers[1], hidden) for model in models)
    routed = replace(models[0].layers[1].moe, w13=weights.layers[1].moe.w13, w2=weights.layers[1].moe.w2)
    without = models[0]._fused.moe_block(hidden, routed)
    torch.testing.assert_close(twice - without, 2 * (once - without), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kv_dtype", ["float32", "bf16", "fp8", "fp8_ds_mla"])
def test_cpp_and_composed_agree_with_every_cache(tmp_path, kv_dtype):
    save_checkpoint("glm_shared", tmp_path, kv_lora_rank=128)
    hf_config = json.loads((tmp_path / "config.json").read_text())
    config = ModelConfig.from_hf(hf_config)
    source = ModelSource(name="oracle", hf_config=hf_config, checkpoint=str(tmp_path))
    weights = load_weights(source, config, dtype=torch.float32, device=CPU)
    index_dtype = "fp8" if kv_dtype.startswith("fp8") else kv_dtype
    tokens = [random_tokens(length, seed=length) for length in LENGTHS]
    results = []
    for fused, shared in IMPLEMENTATIONS.items():
        model = build_model(
            DsaModel,
            config,
            weights,
            kernels=Kernels(CPU, shared),
            fused=fused,
            hadamard=index_dtype == "fp8",
        )
        driver = ModelDriver(model, config, kv_dtype=kv_dtype, index_dtype=index_dtype)
        results.append(torch.cat(score(driver, tokens, chunk=64)))
    assert results[0].isfinite().all()
    # an fp8 rounding that turns may select another key of nearly the same score: most rows agree closely
    differences = (results[0] - results[1]).abs().amax(-1)
    assert differences.median() < 2e-3
    assert differences.mean() < 0.1


def test_padding_rows_write_nothing(oracle):
    config, weights, tokens, _ = oracle
    model = build_model(DsaModel, config, weights, kernels=Kernels(CPU, "cpp"))
    drivers = [ModelDriver(model, config) for _ in range(2)]
    plain = drivers[0].step({0: tokens[1]})[0]
    padded = drivers[1].step({0: tokens[1]}, padding=5)[0]
    torch.testing.assert_close(plain, padded, rtol=1e-5, atol=1e-5)
    for a, b in zip(*(driver.caches for driver in drivers), strict=True):
        untouched = [x.kv.isnan() for x in (a, b)]
        assert torch.equal(*untouched)


def test_a_step_of_padding_alone(oracle):
    config, weights, _, _ = oracle
    driver = ModelDriver(build_model(DsaModel, config, weights, kernels=Kernels(CPU, "cpp")), config)
    hidden = driver.model.forward(driver.batch({0: []}, padding=4), driver.caches)
    assert hidden.shape == (4, config.hidden_size)
    assert hidden.isfinite().all()
    assert all(cache.kv.isnan().all() for cache in driver.caches)


def test_every_fused_operation_is_counted(oracle):
    config, weights, tokens, _ = oracle
    kernels = Kernels(CPU, "cpp")
    driver = ModelDriver(build_model(DsaModel, config, weights, kernels=kernels), config)
    driver.step({0: tokens[0]})
    assert all(kernels.calls[op]["cpp"] > 0 for op in FUSED_OPS)
    assert kernels.calls["fused_q"] == {"cpp": config.num_hidden_layers}


def test_without_a_compiler_it_is_composed_and_says_so(oracle, monkeypatch, tmp_path):
    config, weights, tokens, expected = oracle
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    kernels = Kernels(CPU, "auto")
    driver = ModelDriver(build_model(DsaModel, config, weights, kernels=kernels), config)
    scores = driver.step({0: tokens[0]})[0]
    assert float((scores - expected[0]).abs().max()) < TOLERANCE
    assert kernels.calls["fused_q"] == {"composed": config.num_hidden_layers}
    with pytest.raises(UserError, match=r"fused kernels in cpp cannot be had \(no C\+\+ compiler"):
        build_model(DsaModel, config, weights, kernels=kernels, fused="cpp")


def test_several_threads_give_the_same(oracle):
    config, weights, tokens, expected = oracle
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert worst_error(config, weights, tokens, expected, padding=2) < TOLERANCE
    finally:
        torch.set_num_threads(before)


def test_one_openmp_runtime_serves_torch_and_the_kernels(oracle):
    """A second runtime would have a thread pool of its own and ignore torch.set_num_threads."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("needs /proc")
    config, weights, *_ = oracle
    build_model(DsaModel, config, weights, kernels=Kernels(CPU, "cpp"))
    loaded = {line.split()[-1] for line in maps.read_text().splitlines() if "libgomp" in line}
    torch_own = {path for path in loaded if Path(path).is_relative_to(Path(torch.__file__).parent)}
    assert loaded == torch_own
