"""Picks an implementation of the fused operations and counts what ran, in the engine's own counters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from torch import Tensor

from paths.api import UserError
from paths.dsa_mrv2.kernels.arguments import LatentNorms, MoeBlock, Rotary
from paths.dsa_mrv2.kernels.describe import DENSE_GEMMS, FUSED_OPS, has_triton_source
from paths.engine.batch import ForwardBatch, LayerCache
from paths.kernels.cpp.build import CppUnavailable
from paths.kernels.devices import triton_interprets
from paths.kernels.gates import triton_refusal
from paths.kernels.guards import checked
from paths.kernels.registry import Kernels

PREFERENCES = ("auto", "triton", "cpp", "composed")


class FusedKernels:
    """One method per fused operation.

    triton and cpp are fused kernels; composed builds the operation from the engine's shared ops, whatever
    those are. `auto` goes with the shared ops: cpp beside C++, triton beside Triton where its gate allows it,
    else composed. Dense GEMMs are composed beside triton. Counts go to `kernels.calls`, fallbacks to
    `kernels.notes`. Raises UserError for an unknown preference, and for cpp or triton that cannot be had.
    """

    def __init__(self, kernels: Kernels, prefer: str = "auto") -> None:
        if prefer not in PREFERENCES:
            raise UserError(f"unknown preference {prefer!r}: allowed are {', '.join(PREFERENCES)}")
        chosen = _choose(kernels, prefer)
        self._kernels = kernels
        self.implementations = {op: name for op, (name, _) in chosen.items()}
        self._functions = {
            op: checked("paths.dsa_mrv2.kernels", FUSED_OPS[op], op, function) if kernels.checks else function
            for op, (_, function) in chosen.items()
        }
        for op, name in self.implementations.items():
            kernels.calls[op] = {name: 0}
        self._counts = {op: kernels.calls[op] for op in FUSED_OPS}

    def embed_norm(self, ids: Tensor, table: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """ids int64 `[T]`, table `[V, Dm]` → (embedding, normed embedding), `[T, Dm]`."""
        return self._run("embed_norm", ids, table, weight, eps)

    def fused_norm_rope(
        self,
        projected: Tensor,
        norms: LatentNorms,
        rotary: Rotary,
        batch: ForwardBatch,
        cache: LayerCache,
        *,
        hadamard: bool,
    ) -> Tensor:
        """projected `[T, ≥ Q + C + R (+ dI)]` → normed query latent `[T, Q]`; writes both caches."""
        return self._run("fused_norm_rope", projected, norms, rotary, batch, cache, hadamard=hadamard)

    def fused_q(
        self,
        projected: Tensor,
        w_uk: Tensor,
        rotary: Rotary,
        positions: Tensor,
        index_weights: Tensor | None,
        *,
        index_dim: int,
        index_dtype: str,
        hadamard: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """projected `[T, H × (N + R) (+ nI × dI)]` → q `[T, H, C + R]`, q' `[T, nI, dI]`, W `[T, nI]`."""
        return self._run(
            "fused_q",
            projected,
            w_uk,
            rotary,
            positions,
            index_weights,
            index_dim=index_dim,
            index_dtype=index_dtype,
            hadamard=hadamard,
        )

    def absorb_output(self, o: Tensor, w_uv: Tensor, out: Tensor) -> None:
        """o `[T, H, C]`, w_uv `[H, V, C]`; writes out `[T, H × V]`."""
        self._run("absorb_output", o, w_uv, out)

    def linear(self, x: Tensor, w: Tensor) -> Tensor:
        """x `[T, D]`, w `[N, D]` → `[T, N]`."""
        return self._run("linear", x, w)

    def moe_block(self, x: Tensor, block: MoeBlock) -> Tensor:
        """x `[T, Dm]` → routed and shared experts, `[T, Dm]`."""
        return self._run("moe_block", x, block)

    def gated_mlp(self, x: Tensor, w13: Tensor, w2: Tensor) -> Tensor:
        """x `[T, Dm]`, w13 `[2I, Dm]`, w2 `[Dm, I]` → `[T, Dm]`."""
        return self._run("gated_mlp", x, w13, w2)

    def _run(self, op: str, *args: Any, **kwargs: Any) -> Any:
        name = self.implementations[op]
        self._counts[op][name] += 1
        recorder = self._kernels.recorder
        if recorder is not None:
            return recorder.kernel(op, name, self._functions[op], args, kwargs)
        return self._functions[op](*args, **kwargs)


def _choose(kernels: Kernels, prefer: str) -> dict[str, tuple[str, Callable[..., Any]]]:
    """Op → implementation and its function."""
    shared = kernels.implementations.values()
    if prefer == "cpp" or (prefer == "auto" and "cpp" in shared):
        from paths.dsa_mrv2.kernels.cpp import load  # here: composed operations compile nothing

        try:
            library = load()
            return {op: ("cpp", getattr(library, op)) for op in FUSED_OPS}
        except CppUnavailable as error:
            if prefer == "cpp":
                raise UserError(
                    f"fused kernels in cpp cannot be had ({error}): use auto or composed"
                ) from error
            kernels.notes.append(f"fused operations: composed instead of cpp, {error}")
    if prefer == "triton" or (prefer == "auto" and "triton" in shared):
        return {op: _triton_or_composed(kernels, op, prefer) for op in FUSED_OPS}
    return {op: _composed(kernels, op) for op in FUSED_OPS}


def _triton_or_composed(kernels: Kernels, op: str, prefer: str) -> tuple[str, Callable[..., Any]]:
    refusal = triton_refusal(op, kernels.platform, kernels.formats)
    if kernels.platform.device == "cpu" and triton_interprets():
        refusal = None
    if refusal is not None and prefer == "triton":
        raise UserError(f"fused kernel {op}=triton cannot be had ({refusal}): use auto or composed")
    if op in DENSE_GEMMS:
        return _composed(kernels, op)
    if refusal is None and not has_triton_source(op):
        refusal = "the operation has no Triton kernel"
    if refusal is not None:
        kernels.notes.append(f"{op}: composed instead of triton, {refusal}")
        return _composed(kernels, op)
    module = import_module(f"paths.dsa_mrv2.kernels.{FUSED_OPS[op]}.triton_impl")
    return "triton", getattr(module, op)


def _composed(kernels: Kernels, op: str) -> tuple[str, Callable[..., Any]]:
    module = import_module(f"paths.dsa_mrv2.kernels.{FUSED_OPS[op]}.composed")
    return "composed", partial(getattr(module, op), kernels)
