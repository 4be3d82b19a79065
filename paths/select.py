"""Which path an engine takes by default: architecture, platform and caches → path, with a sentence why."""

from __future__ import annotations

from dataclasses import dataclass

from paths.api import Platform, UserError
from paths.kernels.gates import Formats, capability_refusal

# model architectures with an indexer, and the draft that both share; V3.2 and GLM are one class
DSA_ARCHITECTURES = ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM", "DeepseekV32MTPModel")
DENSE_ARCHITECTURES = ("DeepseekV3ForCausalLM",)  # the same model without one
DRAFT_ARCHITECTURES = ("DeepseekV32MTPModel",)
ARCHITECTURES = DSA_ARCHITECTURES + DENSE_ARCHITECTURES

COMPILED_FOR = {"cuda": ((9, 0), (10, 0)), "rocm": ((9, 4),)}  # what `python -m paths.kernels compile` checks
TESTED_ON: dict[str, tuple[tuple[int, int], ...]] = {"cuda": (), "rocm": ()}  # whole paths, on the hardware

MODEL_CLASSES = {"dsa": "DsaModel", "generic": "GenericModel"}
DRAFT_CLASSES = {"dsa": "DsaDraft", "generic": "GenericDraft"}
GRAPHS = {"dsa_mrv2": "full_and_piecewise", "generic_mrv1": "full_and_piecewise", "generic_eager": "none"}

_FUSED_OPS = ("fused_norm_rope", "fused_q", "sparse_mla", "index_topk")


@dataclass(frozen=True, kw_only=True)
class Selection:
    """What was chosen; `reason` is a sentence, each warning another."""

    path: str
    graphs: str  # as path.options.graphs names them
    kernels: tuple[str, ...]  # families of kernels, the preferred one first
    model_class: str
    draft_class: str | None  # of the MTP draft; None without draft tokens
    reason: str
    warnings: tuple[str, ...] = ()


def select(
    *,
    architecture: str,
    platform: Platform,
    formats: Formats,
    draft_tokens: int = 0,
    dsa: bool | None = None,
    triton: bool = True,
) -> Selection:
    """Pure. dsa: the explicit choice, None for the rules; triton: whether the package is installed.

    Raises UserError where the fused path was asked for and cannot run the architecture.
    """
    fused, reason = _take_fused(architecture, platform, formats, dsa=dsa, triton=triton)
    warnings = []
    path = "dsa_mrv2" if fused else "generic_mrv1"
    refusal = _refusal(platform, formats, triton=triton)
    if fused and platform.device not in ("cpu", "xpu"):
        if refusal is not None:
            warnings.append(f"the fused kernels do not run here, torch does: {refusal}")
        if platform.device == "rocm":
            warnings.append("dsa_mrv2 was asked for on ROCm, where graphs with breaks have been slower")
    if not fused and not (platform.compiler and platform.python_headers):
        path = "generic_eager"
        missing = "Python.h" if platform.compiler else "a C++ compiler"
        warnings.append(f"generic_eager in place of generic_mrv1: torch.compile needs {missing}")
    warnings += _untested(platform)
    family = "dsa" if fused else "generic"
    draft = DRAFT_CLASSES[family]
    is_draft = architecture in DRAFT_ARCHITECTURES
    return Selection(
        path=path,
        graphs=GRAPHS[path],
        kernels=_kernel_families(path, platform, refusal),
        model_class=draft if is_draft else MODEL_CLASSES[family],
        draft_class=draft if draft_tokens > 0 and not is_draft else None,
        reason=reason,
        warnings=tuple(warnings),
    )


def _take_fused(
    architecture: str, platform: Platform, formats: Formats, *, dsa: bool | None, triton: bool
) -> tuple[bool, str]:
    """Whether the fused path is taken, and the sentence why."""
    if architecture not in DSA_ARCHITECTURES:
        known = architecture in DENSE_ARCHITECTURES
        why = "has no indexer" if known else "is not known to have sparse attention"
        if dsa:
            raise UserError(
                f"path.options.dsa=true: architecture {architecture} {why}; allowed: false, null, or a model"
                f" of {', '.join(DSA_ARCHITECTURES[:2])}"
            )
        return False, f"{architecture} {why}: the generic path alone runs it"
    if dsa is not None:
        chosen = "the fused path" if dsa else "the generic path"
        return dsa, f"path.options.dsa={str(dsa).lower()} asks for {chosen}; no rule applies"
    if platform.device == "rocm":
        return False, (
            "ROCm keeps the compiled V1 path for every architecture with sparse attention, because graphs"
            " with breaks have been slower there; dsa_mrv2 runs when asked for"
        )
    if platform.device != "cuda":
        return False, f"{platform.device} takes the generic path; dsa_mrv2 runs here when asked for"
    refusal = _refusal(platform, formats, triton=triton)
    if refusal is not None:
        return False, f"the fused kernels do not run here: {refusal}"
    return True, "CUDA takes fused kernels, runner V2 and graphs with breaks for sparse attention"


def _refusal(platform: Platform, formats: Formats, *, triton: bool) -> str | None:
    """Why the first of the fused kernels that does not run there does not; None where all run."""
    if platform.device not in ("cuda", "rocm"):
        return None
    if not triton:
        return "the package triton is not installed; pip install triton"
    refusals = (capability_refusal(op, platform, formats) for op in _FUSED_OPS)
    return next((refusal for refusal in refusals if refusal is not None), None)


def _kernel_families(path: str, platform: Platform, refusal: str | None) -> tuple[str, ...]:
    kernels: tuple[str, ...] = ("torch",)
    if platform.device in ("cuda", "rocm"):
        kernels = ("triton",) if refusal is None else ("torch",)
    elif platform.device == "cpu" and platform.compiler:
        kernels = ("cpp", "torch")
    return (*kernels, "inductor") if path == "generic_mrv1" else kernels


def _untested(platform: Platform) -> list[str]:
    """A warning that names the capability, on a GPU whose kind has never run these paths."""
    if platform.device not in COMPILED_FOR or platform.capability in TESTED_ON[platform.device]:
        return []
    compiled = COMPILED_FOR[platform.device]
    here = "an unknown capability" if platform.capability is None else capability_name(platform)
    names = " and ".join(_name(platform.device, each) for each in compiled)
    known = "compiled for it" if platform.capability in compiled else f"compiled for {names} only"
    tested = [_name(platform.device, each) for each in TESTED_ON[platform.device]]
    return [f"{here} is untested (tested: {', '.join(tested) or 'none'}); the kernels are {known}"]


def capability_name(platform: Platform) -> str:
    """sm_90, gfx9.4, or the device alone."""
    return platform.device if platform.capability is None else _name(platform.device, platform.capability)


def _name(device: str, capability: tuple[int, int]) -> str:
    major, minor = capability
    if device == "cuda":
        return f"sm_{major}{minor}"
    return "gfx942" if capability == (9, 4) else f"gfx{major}{minor}x"
