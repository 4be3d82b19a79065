"""Choosing implementations: visible fallbacks, counted calls, nothing shared between engines."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from paths.api import Platform, UserError
from paths.dsa_mrv2.kernels.describe import FUSED_OPS
from paths.kernels.describe import INNER_OPS, OPS, describe_kernels, has_cpp_source
from paths.kernels.registry import Kernels
from paths.kernels.tools.catalog import find_ops
from tests.kernels.inputs import CPU, kernels


def test_calls_are_counted_per_object():
    first, second = Kernels(CPU, "torch"), Kernels(CPU, "reference", {"rope": "torch"})
    first.rms_norm(torch.ones(2, 4), torch.ones(4), 1e-6)
    assert first.calls["rms_norm"] == {"torch": 1}
    assert second.calls["rms_norm"] == {"reference": 0}
    assert second.implementations["rope"] == "torch"
    assert set(first.calls) == set(OPS)


def test_missing_compiler_is_a_visible_fallback(monkeypatch):
    import paths.kernels.cpp as cpp

    def refuse():
        raise cpp.CppUnavailable("no compiler")

    monkeypatch.setattr(cpp, "load", refuse)
    chosen = Kernels(CPU)
    assert set(chosen.implementations.values()) == {"torch"}
    assert chosen.notes == [f"{op}: torch instead of cpp, no compiler" for op in OPS if has_cpp_source(op)]
    with pytest.raises(UserError, match=r"rms_norm=cpp cannot be had \(no compiler\)"):
        Kernels(CPU, "cpp")


def test_auto_takes_cpp_where_it_builds():
    kernels("cpp")  # skips where it does not
    chosen = Kernels(CPU)
    assert chosen.implementations == {op: "cpp" if has_cpp_source(op) else "torch" for op in OPS}
    assert chosen.notes == []


def test_unknown_names():
    with pytest.raises(UserError, match=r"kernel implementation 'cuda'.*auto, triton, cpp, torch, reference"):
        Kernels(CPU, "cuda")
    with pytest.raises(UserError, match=r"unknown kernel op 'softmax'.*rms_norm"):
        Kernels(CPU, "auto", {"softmax": "torch"})


def test_description_follows_the_platform():
    with_compiler = describe_kernels(Platform(device="cpu", compiler=True))
    without = describe_kernels(Platform(device="cpu", compiler=False))
    assert set(with_compiler) == set(without) == set(OPS)
    assert with_compiler["sparse_mla"].impl == "cpp"
    assert without["sparse_mla"].impl == "torch"
    assert "install g++" in without["sparse_mla"].why


def test_description_imports_no_torch():
    code = (
        "import sys; from paths.kernels.describe import describe_kernels; from paths.api import Platform;"
        "from paths.models.config import ModelConfig;"
        "describe_kernels(Platform(device='cpu')); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_folder_is_an_op_or_an_inner_kernel_of_one():
    """Nothing can be forgotten by `cmd=list`, and an inner kernel is one that its op's kernel calls."""
    folders = {False: set(), True: set()}
    for op in find_ops():
        folders[op.is_fused].add(op.folder.name)
    assert folders[True] == set(FUSED_OPS.values())
    assert folders[False] == set(OPS.values()) | set(INNER_OPS)
    assert not set(OPS) & set(INNER_OPS)
    for inner, outer in INNER_OPS.items():
        source = find_ops([OPS[outer]])[0].folder / "triton_impl.py"
        assert f"from paths.kernels.{inner}.triton_impl import" in source.read_text(encoding="utf-8")


def test_every_op_has_a_method_of_its_name():
    assert {op for op in OPS if callable(getattr(Kernels, op, None))} == set(OPS)
