"""Which implementation of each fused operation would run on a platform, and why. Imports no torch."""

from __future__ import annotations

from paths.api import KernelChoice, Platform

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


def describe_fused_kernels(platform: Platform) -> dict[str, KernelChoice]:
    """Operation → choice. Pure and instant."""
    if platform.device != "cpu":
        choice = KernelChoice(impl="composed", why=f"shared ops; no fused kernel for {platform.device}")
    elif not platform.compiler:
        choice = KernelChoice(impl="composed", why="fallback: no C++ compiler on the PATH; install g++")
    else:
        choice = KernelChoice(impl="cpp", why="C++ kernel, built at first use")
    return dict.fromkeys(FUSED_OPS, choice)
