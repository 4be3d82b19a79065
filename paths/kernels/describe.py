"""Which implementation of each kernel op would run on a platform, and why. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from paths.api import KernelChoice, Platform

OPS = (
    "rms_norm",
    "add_rms_norm",
    "rope",
    "mla_cache_write",
    "index_k_write",
    "index_q_prepare",
    "index_topk",
    "sparse_mla",
    "moe_route",
    "moe_experts",
)
IMPLEMENTATIONS = ("cpp", "torch", "reference")


def describe_kernels(platform: Platform) -> dict[str, KernelChoice]:
    """Op → choice. Pure: it looks at the installed sources, and builds nothing."""
    return {op: _choose(op, platform) for op in OPS}


def has_cpp_source(op: str) -> bool:
    return (Path(__file__).parent / op / "cpu.cpp").is_file()


def _choose(op: str, platform: Platform) -> KernelChoice:
    if platform.device != "cpu":
        return KernelChoice(impl="torch", why=f"portable; no kernel for {platform.device} is installed")
    if not has_cpp_source(op):
        return KernelChoice(impl="torch", why="portable; the op has no C++ source")
    if not platform.compiler:
        return KernelChoice(impl="torch", why="fallback: no C++ compiler on the PATH; install g++")
    return KernelChoice(impl="cpp", why="C++ kernel, built at first use")
