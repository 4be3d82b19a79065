"""The kernel ops of one engine: picks an implementation per op and counts what ran.

reference is the definition, torch runs anywhere, cpp is the CPU kernel built at first use. The choice belongs
to the `Kernels` object; nothing is selected module-wide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from paths.api import UserError
from paths.engine.batch import ForwardBatch, LayerCache
from paths.kernels.describe import IMPLEMENTATIONS, OPS

PREFERENCES = ("auto", *IMPLEMENTATIONS)


class Kernels:
    """One method per op. `calls[op][implementation]` counts, `notes` lists fallbacks in words.

    prefer: `auto` is cpp where it builds, else torch with a note; any other name is asked of every op.
    overrides: op → implementation, stronger than `prefer`. Raises UserError for an unknown name, and for cpp
    that was asked for by name and cannot be had.
    """

    def __init__(
        self, device: torch.device, prefer: str = "auto", overrides: Mapping[str, str] | None = None
    ) -> None:
        self.device = device
        self.notes: list[str] = []
        self._cpp: Any = None
        self._cpp_missing: str | None = None
        wanted = dict.fromkeys(OPS, prefer) | dict(overrides or {})
        _check_names(wanted)
        chosen = {op: self._load(op, name) for op, name in wanted.items()}
        self._functions = {op: function for op, (_, function) in chosen.items()}
        self.implementations = {op: name for op, (name, _) in chosen.items()}
        self.calls = {op: {name: 0} for op, name in self.implementations.items()}
        self._counters = {op: (self.calls[op], name) for op, name in self.implementations.items()}

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x `[T, D]`, weight float32 `[D]` → `[T, D]`."""
        return self._run("rms_norm", x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """x, residual `[T, D]` → (normed, new residual)."""
        return self._run("add_rms_norm", x, residual, weight, eps)

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, *, interleaved: bool) -> Tensor:
        """x `[T, H, R]`, tables float32 `[P, R / 2]`, positions int64 `[T]` → `[T, H, R]`."""
        return self._run("rope", x, cos, sin, positions, interleaved=interleaved)

    def mla_cache_write(self, c: Tensor, k_pe: Tensor, slot_mapping: Tensor, cache: LayerCache) -> None:
        """c `[T, C]`, k_pe `[T, R]` rotated, slot_mapping int64 `[T]`; negative slots write nothing."""
        self._run("mla_cache_write", c, k_pe, slot_mapping, cache)

    def index_k_write(self, k: Tensor, slot_mapping: Tensor, cache: LayerCache, *, hadamard: bool) -> None:
        """k `[T, dI]` normed and rotated, slot_mapping int64 `[T]`; negative slots write nothing."""
        self._run("index_k_write", k, slot_mapping, cache, hadamard=hadamard)

    def index_q_prepare(
        self, q: Tensor, w: Tensor, *, index_dtype: str, hadamard: bool
    ) -> tuple[Tensor, Tensor]:
        """q `[T, nI, dI]` rotated, w `[T, nI]` → q' in the index dtype and W float32 `[T, nI]`."""
        return self._run("index_q_prepare", q, w, index_dtype=index_dtype, hadamard=hadamard)

    def index_topk(self, q: Tensor, weights: Tensor, cache: LayerCache, batch: ForwardBatch, k: int) -> None:
        """q', W from index_q_prepare; fills `batch.topk_indices[:T, :k]`."""
        self._run("index_topk", q, weights, cache, batch, k)

    def sparse_mla(
        self, q: Tensor, cache: LayerCache, batch: ForwardBatch, k: int, *, latent: int, scale: float
    ) -> tuple[Tensor, Tensor]:
        """q `[T, H, C + R]`, C = latent → out `[T, H, C]` and lse float32 `[T, H]`."""
        return self._run("sparse_mla", q, cache, batch, k, latent=latent, scale=scale)

    def moe_route(
        self,
        x: Tensor,
        gate: Tensor,
        bias: Tensor,
        *,
        n_group: int,
        topk_group: int,
        top_k: int,
        norm: bool,
        scaling: float,
    ) -> tuple[Tensor, Tensor]:
        """x `[T, D]`, gate float32 `[E, D]`, bias float32 `[E]` → weights, ids int32 `[T, top_k]`."""
        return self._run(
            "moe_route",
            x,
            gate,
            bias,
            n_group=n_group,
            topk_group=topk_group,
            top_k=top_k,
            norm=norm,
            scaling=scaling,
        )

    def moe_experts(self, x: Tensor, ids: Tensor, weights: Tensor, w13: Tensor, w2: Tensor) -> Tensor:
        """x `[T, D]`, ids and weights `[T, K]`, w13 `[E, 2I, D]`, w2 `[E, D, I]` → `[T, D]`."""
        return self._run("moe_experts", x, ids, weights, w13, w2)

    def _run(self, op: str, *args: Any, **kwargs: Any) -> Any:
        counts, name = self._counters[op]
        counts[name] += 1
        return self._functions[op](*args, **kwargs)

    def _load(self, op: str, name: str) -> tuple[str, Callable[..., Any]]:
        if name in ("auto", "cpp"):
            function, missing = self._load_cpp(op)
            if function is not None:
                return "cpp", function
            if name == "cpp":
                raise UserError(f"kernel {op}=cpp cannot be had ({missing}): use auto or torch")
            note = f"{op}: torch instead of cpp, {missing}"
            if note not in self.notes:
                self.notes.append(note)
            name = "torch"
        module = {"torch": "torch_impl", "reference": "reference"}[name]
        return name, getattr(import_module(f"paths.kernels.{op}.{module}"), op)

    def _load_cpp(self, op: str) -> tuple[Callable[..., Any] | None, str]:
        """The op's C++ function, or None and the reason; the library is built once per engine."""
        if self.device.type != "cpu":
            return None, f"which runs on the CPU only and the device is {self.device.type}"
        if self._cpp is None and self._cpp_missing is None:
            from paths.kernels.cpp import CppUnavailable, load  # here: a torch-only engine compiles nothing

            try:
                self._cpp = load()
            except CppUnavailable as error:
                self._cpp_missing = str(error)
        if self._cpp is None:
            return None, str(self._cpp_missing)
        return getattr(self._cpp, op, None), "which has no C++ source for this op"


def _check_names(wanted: Mapping[str, str]) -> None:
    for op, name in wanted.items():
        if op not in OPS:
            raise UserError(f"unknown kernel op {op!r}: allowed are {', '.join(OPS)}")
        if name not in PREFERENCES:
            raise UserError(f"unknown kernel implementation {name!r}: allowed are {', '.join(PREFERENCES)}")
