"""The selection over every combination: properties that must hold, each with a public mishap behind it."""

from __future__ import annotations

import dataclasses
import itertools
from functools import cache

import pytest
import yaml

from harness.composition import packaged_conf
from harness.selection_table import CACHES, PLATFORMS, rows, warnings
from paths.api import Platform, UserError
from paths.built_in import BuiltInOptions
from paths.kernels.gates import Formats
from paths.select import ARCHITECTURES, DSA_ARCHITECTURES, GRAPHS, capability_name, select

TOOLS = {"compiler": True, "python_headers": True}
CUDA = [
    Platform(device="cuda", capability=each, **TOOLS)
    for each in ((7, 5), (8, 0), (8, 9), (9, 0), (10, 0), (12, 0))
]
ROCM = [Platform(device="rocm", capability=each, **TOOLS) for each in ((9, 0), (9, 4), (9, 5))]
UNKNOWN = [Platform(device=device, **TOOLS) for device in ("cuda", "rocm")]
OTHER = [Platform(device=device, **TOOLS) for device in ("cpu", "xpu")]
EVERYWHERE = [*CUDA, *ROCM, *UNKNOWN, *OTHER]
FORMATS = [
    Formats(kv_dtype=kv, index_dtype=index)
    for kv in ("float32", "bf16", "fp8", "fp8_ds_mla")
    for index in ("float32", "bf16", "fp8")
]
NAMES = (*ARCHITECTURES, "SomethingNewForCausalLM")
DRAFTS = (0, 1, 3)
COMBINATIONS = list(itertools.product(NAMES, EVERYWHERE, FORMATS, DRAFTS, (None, True, False), (True, False)))


@cache
def yaml_of(path):
    return yaml.safe_load((packaged_conf() / "path" / f"{path}.yaml").read_text())


def choose(architecture="DeepseekV32ForCausalLM", platform=CUDA[3], formats=FORMATS[4], **more):
    return select(architecture=architecture, platform=platform, formats=formats, **more)


def test_every_combination_ends_in_a_path_that_exists_and_says_why():
    seen = set()
    for architecture, platform, formats, draft, dsa, triton in COMBINATIONS:
        if dsa and architecture not in DSA_ARCHITECTURES:
            with pytest.raises(UserError, match=f"{architecture}.*allowed"):
                choose(architecture, platform, formats, draft_tokens=draft, dsa=dsa, triton=triton)
            continue
        chosen = choose(architecture, platform, formats, draft_tokens=draft, dsa=dsa, triton=triton)
        conf = yaml_of(chosen.path)
        options = BuiltInOptions.parse(conf["options"], path=chosen.path)
        assert options.graphs == chosen.graphs == GRAPHS[chosen.path]
        fused = options.model == "dsa"
        assert chosen.model_class.startswith("Dsa" if fused else "Generic")
        if architecture != "DeepseekV32MTPModel":
            assert chosen.model_class == conf["expect"]["any"]["model_class"]
        assert len(chosen.reason) > 20 and "\n" not in chosen.reason
        assert "inductor" in chosen.kernels if options.compiled else "inductor" not in chosen.kernels
        seen.add(chosen.path)
    assert seen == {"dsa_mrv2", "generic_mrv1"}


def by_rules():
    return [
        (architecture, platform, formats, draft, triton)
        for architecture, platform, formats, draft, dsa, triton in COMBINATIONS
        if dsa is None
    ]


def test_siblings_get_the_same_class_and_their_draft_the_matching_one():
    """A fix for one architecture that forgot its sibling cost 30 % once, and accuracy another time."""
    for architecture, platform, formats, draft, triton in by_rules():
        if architecture not in DSA_ARCHITECTURES:
            continue
        v32 = choose("DeepseekV32ForCausalLM", platform, formats, draft_tokens=draft, triton=triton)
        glm = choose("GlmMoeDsaForCausalLM", platform, formats, draft_tokens=draft, triton=triton)
        assert v32 == glm
        mtp = choose("DeepseekV32MTPModel", platform, formats, triton=triton)
        assert (mtp.path, mtp.graphs, mtp.kernels, mtp.draft_class) == (
            v32.path,
            v32.graphs,
            v32.kernels,
            None,
        )
        assert v32.draft_class == (mtp.model_class if draft else None)
        assert mtp.model_class.removesuffix("Draft") == v32.model_class.removesuffix("Model")


def test_the_number_of_draft_tokens_moves_no_path():
    for architecture, platform, formats, _, triton in by_rules():
        few = [choose(architecture, platform, formats, draft_tokens=n, triton=triton) for n in DRAFTS]
        assert len({dataclasses.replace(each, draft_class=None) for each in few}) == 1


@pytest.mark.parametrize("platform", [*ROCM, UNKNOWN[1]], ids=capability_name)
@pytest.mark.parametrize("architecture", DSA_ARCHITECTURES)
def test_rocm_keeps_the_compiled_v1_path_for_all(architecture, platform):
    for formats in FORMATS:
        chosen = choose(architecture, platform, formats)
        assert chosen.path == "generic_mrv1" and "ROCm keeps the compiled V1 path" in chosen.reason


@pytest.mark.parametrize("platform", OTHER, ids=capability_name)
def test_cpu_and_xpu_say_that_the_fused_path_runs_when_asked_for(platform):
    for formats in FORMATS:
        chosen = choose(platform=platform, formats=formats)
        assert chosen.path == "generic_mrv1" and "dsa_mrv2 runs here when asked for" in chosen.reason
        asked = choose(platform=platform, formats=formats, dsa=True)
        assert asked.path == "dsa_mrv2" and asked.warnings == ()


def test_the_explicit_choice_wins_everywhere():
    for platform, formats, triton in itertools.product(EVERYWHERE, FORMATS, (True, False)):
        out = choose(platform=platform, formats=formats, triton=triton, dsa=False)
        asked = choose(platform=platform, formats=formats, triton=triton, dsa=True)
        assert (out.path, asked.path) == ("generic_mrv1", "dsa_mrv2")
        assert "path.options.dsa=false" in out.reason and "path.options.dsa=true" in asked.reason


@pytest.mark.parametrize("name", ["DeepseekV3ForCausalLM", "SomethingNewForCausalLM"])
def test_without_an_indexer_the_generic_path_alone(name):
    for platform in EVERYWHERE:
        chosen = choose(name, platform, draft_tokens=1)
        assert (chosen.path, chosen.model_class, chosen.draft_class) == (
            "generic_mrv1", "GenericModel", "GenericDraft",
        )  # fmt: skip
        assert name in chosen.reason


@pytest.mark.parametrize("platform", [*CUDA, *ROCM], ids=capability_name)
def test_an_untested_capability_is_named(platform):
    for architecture in NAMES:
        (warning,) = [text for text in choose(architecture, platform).warnings if "untested" in text]
        assert capability_name(platform) in warning
        known = (
            platform.capability in ((9, 0), (10, 0))
            if platform.device == "cuda"
            else platform.capability == (9, 4)
        )
        assert ("compiled for it" in warning) == known


def test_an_unknown_capability_is_said_and_takes_no_fused_kernel():
    chosen = choose(platform=UNKNOWN[0])
    assert chosen.path == "generic_mrv1" and "capability is unknown" in chosen.reason
    assert "an unknown capability is untested" in chosen.warnings[0]


@pytest.mark.parametrize(
    ("capability", "kv_dtype", "path"),
    [
        ((7, 5), "bf16", "generic_mrv1"),
        ((8, 0), "bf16", "dsa_mrv2"),
        ((8, 0), "fp8", "generic_mrv1"),
        ((8, 0), "fp8_ds_mla", "generic_mrv1"),
        ((8, 9), "fp8_ds_mla", "dsa_mrv2"),
        ((9, 0), "fp8", "dsa_mrv2"),
    ],
)
def test_cache_formats_are_gated_per_capability(capability, kv_dtype, path):
    platform = Platform(device="cuda", capability=capability, **TOOLS)
    formats = Formats(kv_dtype=kv_dtype, index_dtype="fp8" if kv_dtype.startswith("fp8") else kv_dtype)
    chosen = choose(platform=platform, formats=formats)
    assert chosen.path == path
    if path == "generic_mrv1":
        assert f"sm_{capability[0]}{capability[1]}" in chosen.reason
        forced = choose(platform=platform, formats=formats, dsa=True)
        assert any("fused kernels do not run here" in text for text in forced.warnings)


def test_without_triton_the_fused_path_is_no_default():
    chosen = choose(triton=False)
    assert chosen.path == "generic_mrv1" and "triton is not installed" in chosen.reason


@pytest.mark.parametrize(
    ("tools", "missing"),
    [({"compiler": False, "python_headers": True}, "a C++ compiler"),
     ({"compiler": True, "python_headers": False}, "Python.h")],
)  # fmt: skip
def test_without_the_tools_of_torch_compile_the_generic_path_is_eager(tools, missing):
    chosen = choose(platform=Platform(device="cpu", **tools))
    assert chosen.path == "generic_eager" and chosen.graphs == "none"
    assert any(missing in warning for warning in chosen.warnings)
    assert choose(platform=Platform(device="cpu", **tools), dsa=True).path == "dsa_mrv2"


def test_the_printed_table_covers_every_combination_once():
    shown = [
        (platform, architecture, cache, row.path)
        for row in rows()
        for platform in row.platforms
        for architecture in row.architectures
        for cache in row.caches
    ]
    expected = [
        (capability_name(platform), architecture, formats.kv_dtype,
         choose(architecture, platform, formats).path)
        for platform in PLATFORMS
        for architecture in ARCHITECTURES
        for formats in CACHES
    ]  # fmt: skip
    assert sorted(shown) == sorted(expected)
    assert all(
        any(f"{name} is untested" in text for text in warnings()) for name in ("sm_90", "sm_120", "gfx942")
    )
