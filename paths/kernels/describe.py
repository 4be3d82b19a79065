"""Which implementation of each kernel op would run on a platform, and why. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from paths.api import KernelChoice, Platform
from paths.kernels.gates import Formats, e4m3_widening, triton_refusal

# op → folder of its source, which has reference.py, torch_impl.py, triton_impl.py and perhaps cpu.cpp
OPS = {
    "rms_norm": "rms_norm",
    "add_rms_norm": "add_rms_norm",
    "rope": "rope",
    "mla_cache_write": "mla_cache_write",
    "index_k_write": "index_k_write",
    "index_q_prepare": "index_q_prepare",
    "index_topk": "index_topk",
    "sparse_mla": "sparse_mla",
    "moe_route": "moe_route",
    "moe_experts": "moe_experts",
    "sample": "sample",
    "rejection": "rejection",
    "prepare_positions": "prepare_inputs",
    "combine_tokens": "prepare_inputs",
    "gather_block_table": "prepare_inputs",
    "slot_mapping": "prepare_inputs",
    "gather_rows": "prepare_inputs",
    "post_update": "prepare_inputs",
    "shift_tokens": "prepare_drafts",
    "advance_drafts": "prepare_drafts",
    "select_all": "select_all",
    "count_nan_rows": "count_nan_rows",
    "mask_tokens": "mask_tokens",
    "apply_writes": "apply_writes",
    "index_to_slot": "index_to_slot",
    "dense_mha": "dense_mha",
}
# folder of a kernel that has no entry of its own → the op whose kernel calls it, and goes with it
INNER_OPS = {"mqa_logits": "index_topk", "topk": "index_topk", "moe_sort": "moe_experts"}
IMPLEMENTATIONS = ("triton", "cpp", "torch", "reference")

_ROOT = Path(__file__).parent


def describe_kernels(platform: Platform, formats: Formats | None = None) -> dict[str, KernelChoice]:
    """Op → choice. Pure: it looks at the installed sources, and builds nothing."""
    return {op: choose(op, platform, formats or Formats()) for op in OPS}


def choose(op: str, platform: Platform, formats: Formats) -> KernelChoice:
    """What `auto` means for one op."""
    if platform.device == "cpu":
        return _choose_cpu(has_cpp_source(op), platform)
    refusal = triton_refusal(op, platform, formats)
    if refusal is None and has_triton_source(op):
        why = e4m3_widening(platform) if formats.uses_e4m3(op) else None
        return KernelChoice(impl="triton", why=why or "Triton kernel")
    return KernelChoice(impl="torch", why=f"fallback: {refusal or 'the op has no Triton kernel'}")


def has_cpp_source(op: str) -> bool:
    return (_ROOT / OPS[op] / "cpu.cpp").is_file()


def has_triton_source(op: str) -> bool:
    return (_ROOT / OPS[op] / "triton_impl.py").is_file()


def _choose_cpu(has_source: bool, platform: Platform) -> KernelChoice:
    if not has_source:
        return KernelChoice(impl="torch", why="portable; the op has no C++ source")
    if not platform.compiler:
        return KernelChoice(impl="torch", why="fallback: no C++ compiler on the PATH; install g++")
    return KernelChoice(impl="cpp", why="C++ kernel, built at first use")
