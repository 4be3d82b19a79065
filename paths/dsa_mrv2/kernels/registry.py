"""Picks an implementation of the fused operations and counts what ran, in the engine's own counters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from torch import Tensor

from paths.api import UserError
from paths.dsa_mrv2.kernels.arguments import LatentNorms, MoeBlock, Rotary
from paths.dsa_mrv2.kernels.describe import FUSED_OPS
from paths.engine.batch import ForwardBatch, LayerCache
from paths.kernels.cpp.build import CppUnavailable
from paths.kernels.registry import Kernels

PREFERENCES = ("auto", "cpp", "composed")


class FusedKernels:
    """One method per fused operation.

    cpp is the fused kernel; composed builds the operation from the engine's shared ops, whatever those are.
    `auto` is cpp beside shared ops in C++, else composed. Counts go to `kernels.calls`, fallbacks to
    `kernels.notes`. Raises UserError for an unknown preference, and for cpp that cannot be had.
    """

    def __init__(self, kernels: Kernels, prefer: str = "auto") -> None:
        if prefer not in PREFERENCES:
            raise UserError(f"unknown preference {prefer!r}: allowed are {', '.join(PREFERENCES)}")
        self.implementation, functions = _choose(kernels, prefer)
        for op in FUSED_OPS:
            kernels.calls[op] = {self.implementation: 0}
        self._counts = {op: kernels.calls[op] for op in FUSED_OPS}
        self._functions = functions

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
        self._counts[op][self.implementation] += 1
        return self._functions[op](*args, **kwargs)


def _choose(kernels: Kernels, prefer: str) -> tuple[str, dict[str, Callable[..., Any]]]:
    shared_cpp = "cpp" in kernels.implementations.values()
    if prefer == "cpp" or (prefer == "auto" and shared_cpp):
        from paths.dsa_mrv2.kernels.cpp import load  # here: composed operations compile nothing

        try:
            library = load()
            return "cpp", {op: getattr(library, op) for op in FUSED_OPS}
        except CppUnavailable as error:
            if prefer == "cpp":
                raise UserError(
                    f"fused kernels in cpp cannot be had ({error}): use auto or composed"
                ) from error
            kernels.notes.append(f"fused operations: composed instead of cpp, {error}")
    modules = {
        op: import_module(f"paths.dsa_mrv2.kernels.{folder}.composed") for op, folder in FUSED_OPS.items()
    }
    return "composed", {op: partial(getattr(module, op), kernels) for op, module in modules.items()}
