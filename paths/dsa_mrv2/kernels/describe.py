"""Which implementation of each fused operation would run on a platform, and why. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from paths.api import KernelChoice, Platform
from paths.kernels.gates import Formats, e4m3_widening, triton_refusal

# operation → folder of its source
FUSED_OPS = {
    "embed_norm": "embed_norm",
    "fused_norm_rope": "fused_norm_rope",
    "fused_q": "fused_q",
    "absorb_output": "absorb_output",
    "linear": "linear",
    "moe_block": "moe_block",
    "gated_mlp": "moe_block",
}


# plain products of matrices: the vendor's library is their kernel
DENSE_GEMMS = ("absorb_output", "linear")


def describe_fused_kernels(platform: Platform, formats: Formats | None = None) -> dict[str, KernelChoice]:
    """Operation → choice. Pure and instant."""
    return {op: _choose(op, platform, formats or Formats()) for op in FUSED_OPS}


def has_triton_source(op: str) -> bool:
    return (Path(__file__).parent / FUSED_OPS[op] / "triton_impl.py").is_file()


def _choose(op: str, platform: Platform, formats: Formats) -> KernelChoice:
    if platform.device == "cpu":
        if not platform.compiler:
            return KernelChoice(impl="composed", why="fallback: no C++ compiler on the PATH; install g++")
        return KernelChoice(impl="cpp", why="C++ kernel, built at first use")
    if op in DENSE_GEMMS:
        return KernelChoice(impl="composed", why="a dense product of the vendor's library")
    refusal = triton_refusal(op, platform, formats)
    if refusal is None and has_triton_source(op):
        why = e4m3_widening(platform) if formats.uses_e4m3(op) else None
        return KernelChoice(impl="triton", why=why or "Triton kernel")
    return KernelChoice(impl="composed", why=f"fallback: {refusal or 'the operation has no Triton kernel'}")
