"""Which GPU runs which op on Triton, with which caches, and that every refusal says why."""

from __future__ import annotations

import pytest
import torch

from paths.api import EngineConfig, ModelSource, Platform, UserError
from paths.dsa_mrv2.kernels.describe import DENSE_GEMMS, FUSED_OPS, describe_fused_kernels
from paths.kernels import gates
from paths.kernels.describe import OPS, describe_kernels
from paths.kernels.gates import Formats
from paths.kernels.registry import Kernels
from tests.kernels.triton_child import assert_passes

pytest.importorskip("triton")
FP8 = Formats(kv_dtype="fp8_ds_mla", index_dtype="fp8")
BF16 = Formats(kv_dtype="bf16", index_dtype="bf16")


def gpu(*capability, device="cuda"):
    return Platform(device=device, capability=capability, compiler=True)


@pytest.mark.parametrize("platform", [gpu(8, 9), gpu(9, 0), gpu(10, 0), gpu(9, 4, device="rocm")])
@pytest.mark.parametrize("formats", [FP8, BF16])
def test_current_gpus_run_everything_on_triton(platform, formats):
    assert {choice.impl for choice in describe_kernels(platform, formats).values()} == {"triton"}
    fused = describe_fused_kernels(platform, formats)
    assert {op for op, choice in fused.items() if choice.impl != "triton"} == set(DENSE_GEMMS)


def test_ampere_has_no_e4m3():
    fp8, bf16 = describe_kernels(gpu(8, 0), FP8), describe_kernels(gpu(8, 0), BF16)
    refused = {op for op, choice in fp8.items() if choice.impl == "torch"}
    assert refused >= {"mla_cache_write", "index_k_write", "index_q_prepare", "index_topk", "sparse_mla"}
    assert refused.isdisjoint({"rms_norm", "rope", "moe_experts", "sample"})
    assert "sm_80 has no fp8 e4m3, sm_89 has" in fp8["sparse_mla"].why
    assert {choice.impl for choice in bf16.values()} == {"triton"}


def test_each_cache_decides_for_its_own_ops():
    mixed = describe_kernels(gpu(8, 0), Formats(kv_dtype="bf16", index_dtype="fp8"))
    assert mixed["sparse_mla"].impl == "triton" and mixed["index_topk"].impl == "torch"


@pytest.mark.parametrize(
    ("platform", "reason"),
    [
        (gpu(7, 5), "sm_75 has no bf16 matrix instructions"),
        (Platform(device="cuda"), "capability is unknown"),
        (Platform(device="xpu"), "not for xpu"),
    ],
)
def test_other_devices_fall_back_and_say_why(platform, reason):
    for choice in describe_kernels(platform, BF16).values():
        assert choice.impl == "torch"
        assert choice.why.startswith("fallback: ") and reason in choice.why


def test_gfx942_widens_the_caches_e4m3_and_older_parts_take_none():
    current = describe_kernels(gpu(9, 4, device="rocm"), FP8)
    assert "gfx942 widens" in current["sparse_mla"].why
    assert "widens" not in current["rms_norm"].why
    older = describe_kernels(gpu(9, 0, device="rocm"), FP8)
    assert older["sparse_mla"].impl == "torch" and "gfx942 or newer" in older["sparse_mla"].why
    assert older["rms_norm"].impl == "triton"


def test_without_the_package_nothing_is_claimed(monkeypatch):
    monkeypatch.setattr(gates, "find_spec", lambda name: None)
    assert {choice.impl for choice in describe_kernels(gpu(9, 0), BF16).values()} == {"torch"}
    assert "pip install triton" in describe_kernels(gpu(9, 0), BF16)["rope"].why


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        (("auto", "auto"), ("bf16", "bf16")),
        (("fp8", "auto"), ("fp8", "fp8")),
        (("bf16", "fp8"), ("bf16", "fp8")),
    ],
)
def test_formats_follow_the_configuration(requested, expected):
    model = ModelSource(name="m", hf_config={}, checkpoint="dummy")
    config = EngineConfig(path="p", impl="i", model=model, kv_dtype=requested[0], index_dtype=requested[1])
    formats = Formats.of(config)
    assert (formats.kv_dtype, formats.index_dtype) == expected


def test_triton_on_a_cpu_needs_the_interpreter():
    with pytest.raises(UserError, match=r"rms_norm=triton cannot be had.*set TRITON_INTERPRET=1"):
        Kernels(torch.device("cpu"), "triton")


def test_the_interpreter_runs_every_op_and_counts():
    assert_passes(
        "import torch\n"
        "from paths.dsa_mrv2.kernels.registry import FusedKernels\n"
        "from paths.kernels.registry import Kernels\n"
        "kernels = Kernels(torch.device('cpu'), 'triton')\n"
        "fused = FusedKernels(kernels)\n"
        "assert set(kernels.implementations.values()) == {'triton'}, kernels.implementations\n"
        "left = {op for op, name in fused.implementations.items() if name != 'triton'}\n"
        f"assert left == set({DENSE_GEMMS!r}), left\n"
        "assert kernels.notes == [], kernels.notes\n"
        "fused.embed_norm(torch.tensor([1, 0]), torch.ones(2, 8), torch.ones(8), 1e-6)\n"
        "assert kernels.calls['embed_norm'] == {'triton': 1}\n"
    )


def test_every_op_has_a_triton_source():
    choices = describe_kernels(gpu(9, 0), BF16) | describe_fused_kernels(gpu(9, 0), BF16)
    assert set(choices) == set(OPS) | set(FUSED_OPS)
    assert {op for op, choice in choices.items() if choice.impl != "triton"} == set(DENSE_GEMMS)
