"""A prefill and a decode step of a one-layer model on two sets of kernels. Imported under the interpreter."""

from __future__ import annotations

import torch

from paths.api import ModelSource
from paths.dsa_mrv2.kernels.describe import DENSE_GEMMS
from paths.dsa_mrv2.model import DsaModel
from paths.generic_mrv1.model import GenericModel
from paths.kernels.registry import Kernels
from paths.models.config import ModelConfig
from paths.models.weights import load_weights
from tests.engine.mock import expected_tokens, make_engine, request, run_until_idle, tokens_of
from tests.model_driver import CPU, ModelDriver, build_model
from tests.models.hf_configs import hf

MODELS = {"dsa_mrv2": DsaModel, "generic_mrv1": GenericModel}
# layer → what it is made of; with 32 selected keys most rows have to choose
LAYERS = {"experts": {"first_k_dense_replace": 0}, "dense": {"first_k_dense_replace": 1}}
CACHES = {"float32": ("float32", "float32"), "fp8": ("fp8", "fp8"), "fp8_ds_mla": ("fp8_ds_mla", "fp8")}
# on equal caches: fp8 attention works in fp8 or bf16, where the order of sums shows
TOLERANCE = {"float32": 1e-4, "fp8": 2e-2, "fp8_ds_mla": 2e-2}


def assert_triton_equals_torch(path: str, layer: str, caches: str) -> None:
    """Hidden states of both steps, and every byte of fp8 caches."""
    config = ModelConfig.from_hf(
        hf(
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=4,
            index_topk=32,
            vocab_size=512,
            **LAYERS[layer],
        )
    )
    source = ModelSource(name="tiny", hf_config={}, checkpoint="dummy")
    weights = load_weights(source, config, dtype=torch.float32, device=CPU)
    kv_dtype, index_dtype = CACHES[caches]
    drivers = {}
    for name in ("torch", "triton"):
        kernels = Kernels(CPU, name)
        model = build_model(
            MODELS[path], config, weights, kernels=kernels, hadamard=index_dtype == "fp8", max_model_len=128
        )
        driver = ModelDriver(model, config, kv_dtype=kv_dtype, index_dtype=index_dtype, max_len=128)
        drivers[name] = (driver, kernels)
    generator = torch.Generator().manual_seed(0)

    def tokens(count: int) -> list[int]:
        return torch.randint(3, 512, (count,), generator=generator).tolist()

    steps = {
        "prefill": {0: tokens(67), 1: tokens(5), 2: tokens(33)},
        "decode": {0: tokens(1), 2: tokens(1), 1: tokens(1)},
    }
    for step, work in steps.items():
        scores = {}
        for name, (driver, _) in drivers.items():
            parts = driver.step(work, padding=3)
            scores[name] = torch.cat(list(parts.values()))
        assert scores["torch"].isfinite().all()
        worst = (scores["triton"] - scores["torch"]).abs().max().item()
        assert worst <= TOLERANCE[caches], f"{path}, {layer}, {caches}, {step}: largest difference {worst}"
        if caches != "float32":
            _assert_equal_bytes(
                drivers["triton"][0], drivers["torch"][0], f"{path}, {layer}, {caches}, {step}"
            )
    _assert_all_triton(drivers["triton"][1])


def _assert_equal_bytes(ours: ModelDriver, theirs: ModelDriver, what: str) -> None:
    for a, b in zip(ours.caches, theirs.caches, strict=True):
        for field in ("kv", "index"):
            mine, other = (getattr(cache, field).view(torch.uint8) for cache in (a, b))
            different = int((mine != other).sum())
            assert different == 0, f"{what}: {different} bytes of {field} differ"


def _assert_all_triton(kernels: Kernels) -> None:
    called = {op: calls for op, calls in kernels.calls.items() if sum(calls.values())}
    others = {op: calls for op, calls in called.items() if set(calls) != {"triton"} and op not in DENSE_GEMMS}
    assert {"sparse_mla", "index_topk"} <= set(called)
    assert not others, f"ran without Triton: {others}"


def assert_engine_runs() -> None:
    """Runner V2 with every one of its ops in Triton: prefills in chunks, decodes, slots that come and go."""
    kernels = Kernels(CPU, "triton")
    engine = make_engine("V2", kernels=kernels, max_num_seqs=3, max_num_batched_tokens=32)
    prompts = {i: list(range(5 + i, 12 + 9 * i)) for i in range(5)}
    for i, prompt in prompts.items():
        engine.add(request(i, prompt, max_tokens=4))
    events = run_until_idle(engine)
    for i, prompt in prompts.items():
        assert tokens_of(events[i]) == expected_tokens(prompt, 4), f"request {i}"
    called = {op: calls for op, calls in kernels.calls.items() if sum(calls.values())}
    assert set(called) >= {"prepare_positions", "combine_tokens", "slot_mapping", "sample", "post_update"}
    assert all(set(calls) == {"triton"} for calls in called.values())


def assert_engine_samples_alike() -> None:
    """Temperature, top-k and top-p by slot: V1 on torch and V2 on Triton draw the same tokens."""
    texts = []
    for runner, name in (("V1", "torch"), ("V2", "triton")):
        engine = make_engine(runner, kernels=Kernels(CPU, name), max_num_seqs=3, max_num_batched_tokens=32)
        for i in range(5):
            sampling = {"temperature": 4.0 * (i % 3), "top_k": (0, 7, 40)[i % 3], "top_p": 1.0 - 0.1 * i}
            engine.add(request(i, range(3, 20 + i), max_tokens=6, **sampling))
        events = run_until_idle(engine)
        texts.append({i: tokens_of(events[i]) for i in range(5)})
    assert texts[0] == texts[1]
    assert len({tuple(text) for text in texts[0].values()}) == 5
