"""Which hardware and formats an op's Triton kernel serves; all others take torch. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from paths.api import EngineConfig, Platform

BF16_MATRIX = (8, 0)  # first NVIDIA capability whose matrix instructions take bf16
E4M3 = (8, 9)  # first one that knows OCP e4m3
CDNA3 = (9, 4)  # gfx942; earlier AMD parts have no fp8 matrix instruction

# op → which of the two caches decides whether its kernel touches e4m3
_E4M3_OF = {
    "mla_cache_write": ("kv",),
    "index_k_write": ("index",),
    "index_q_prepare": ("index",),
    "mqa_logits": ("index",),
    "index_topk": ("index",),
    "sparse_mla": ("kv",),
    "fused_norm_rope": ("kv", "index"),
    "fused_q": ("index",),
}


@dataclass(frozen=True, kw_only=True)
class Formats:
    """What an engine stores; decides, with the device, which kernels can run."""

    kv_dtype: str = "bf16"
    index_dtype: str = "bf16"

    @classmethod
    def of(cls, config: EngineConfig) -> Formats:
        """As `config` asks, `auto` resolved the way the caches do it."""
        kv_dtype = config.dtype if config.kv_dtype == "auto" else config.kv_dtype
        follows = "fp8" if kv_dtype.startswith("fp8") else config.dtype
        return cls(
            kv_dtype=kv_dtype, index_dtype=follows if config.index_dtype == "auto" else config.index_dtype
        )

    def uses_e4m3(self, op: str) -> bool:
        stored = {"kv": self.kv_dtype, "index": self.index_dtype}
        return any(stored[cache].startswith("fp8") for cache in _E4M3_OF.get(op, ()))


def triton_refusal(op: str, platform: Platform, formats: Formats) -> str | None:
    """Why the op's Triton kernel does not run there, in words with a remedy; None where it does."""
    if platform.device not in ("cuda", "rocm"):
        return f"Triton compiles for CUDA and ROCm devices, not for {platform.device}"
    if find_spec("triton") is None:
        return "the package triton is not installed; pip install triton"
    return capability_refusal(op, platform, formats)


def capability_refusal(op: str, platform: Platform, formats: Formats) -> str | None:
    """Why the kernel does not run on such a CUDA or ROCm device. Pure."""
    if platform.capability is None:
        return "the device's capability is unknown; install the extra gpu"
    if platform.device == "rocm":
        return _rocm_refusal(op, platform.capability, formats)
    major, minor = platform.capability
    if platform.capability < BF16_MATRIX:
        return f"sm_{major}{minor} has no bf16 matrix instructions; sm_80 has"
    if platform.capability < E4M3 and formats.uses_e4m3(op):
        return f"sm_{major}{minor} has no fp8 e4m3, sm_89 has; bf16 caches run on Triton here"
    return None


def e4m3_widening(platform: Platform) -> str | None:
    """What fp8 kernels do where matrix instructions do not take OCP e4m3; None where they do."""
    if platform.device == "rocm" and platform.capability == CDNA3:
        return "caches hold OCP e4m3, which gfx942 widens in the kernel"
    return None


def _rocm_refusal(op: str, capability: tuple[int, int], formats: Formats) -> str | None:
    if capability < CDNA3 and formats.uses_e4m3(op):
        return "fp8 kernels need gfx942 or newer; bf16 caches run on Triton here"
    return None
