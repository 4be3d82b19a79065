"""Building the C++ kernels: the cache, the fallback, and two processes at once."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
import torch

from paths.kernels.cpp import build as building
from paths.kernels.cpp.build import NATIVE, PORTABLE, CppUnavailable, build_library
from paths.kernels.registry import Kernels

SOURCE = """
#include <torch/library.h>
namespace {
int64_t answer() { return 42; }
TORCH_LIBRARY_FRAGMENT(OP_NAMESPACE, m) {
  m.def("answer() -> int", &answer);
}
}
"""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "cpu.cpp"
    path.write_text(SOURCE)
    return path


def test_builds_once_and_loads(cache, source, monkeypatch):
    library = build_library("build_test_once", [source])
    assert library.is_relative_to(cache)
    torch.ops.load_library(str(library))
    assert torch.ops.build_test_once.answer() == 42
    monkeypatch.setattr(building, "_compile", lambda *_: pytest.fail("compiled again"))
    assert build_library("build_test_once", [source]) == library


def test_another_source_or_variant_is_another_library(cache, source, monkeypatch):
    monkeypatch.setattr(building, "_compile", lambda *args: args[-1].touch())
    first = build_library("build_test_key", [source])
    assert build_library("build_test_key", [source], PORTABLE) != first
    source.write_text(SOURCE.replace("42", "43"))
    assert build_library("build_test_key", [source], NATIVE) != first


def test_without_a_compiler_it_says_so(cache, source, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(CppUnavailable, match=r"no C\+\+ compiler on the PATH"):
        build_library("build_test_none", [source])


def test_a_compile_error_is_one_line_and_leaves_no_library(cache, source):
    source.write_text(SOURCE + "\nint broken = undeclared_thing;\n")
    with pytest.raises(CppUnavailable, match=r"undeclared_thing") as failure:
        build_library("build_test_broken", [source])
    assert "\n" not in str(failure.value)
    assert not list(cache.rglob("*.so"))


def test_an_unwritable_cache_is_a_reason(source, monkeypatch, tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocker))
    with pytest.raises(CppUnavailable, match="cannot build the C"):
        build_library("build_test_unwritable", [source])


def test_the_engine_falls_back_to_torch_with_the_reason(cache, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    kernels = Kernels(torch.device("cpu"), "auto")
    assert set(kernels.implementations.values()) == {"torch"}
    assert any("no C++ compiler" in note for note in kernels.notes)


def _build_in_process(source: str, answers) -> None:
    library = build_library("build_test_race", [Path(source)])
    torch.ops.load_library(str(library))
    answers.put(torch.ops.build_test_race.answer())


@pytest.mark.slow
def test_two_processes_at_once(cache, source):
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    workers = [context.Process(target=_build_in_process, args=(str(source), answers)) for _ in range(2)]
    for worker in workers:
        worker.start()
    assert [answers.get(timeout=120) for _ in workers] == [42, 42]
    for worker in workers:
        worker.join(timeout=30)
        assert worker.exitcode == 0
    assert len(list(cache.rglob("*.so"))) == 1
