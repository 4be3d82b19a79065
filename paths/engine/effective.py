"""What an engine ran, read back from the objects that ran it."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from paths.api import Counters, Effective
from paths.engine.batch import LayerCache
from paths.engine.runner import Model, Runner
from paths.engine.warm_up import WarmUp
from paths.graphs.drafts import GraphedDrafts
from paths.graphs.forward import GraphedForward
from paths.kernels.registry import Kernels

_KV_NAMES = {
    torch.float32: "float32",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "fp8",
    torch.uint8: "fp8_ds_mla",
}


class EffectiveReporter:
    """Reads back what ran from the objects that ran it."""

    def __init__(
        self,
        *,
        path: str,
        model: Model,
        weight_dtype: torch.dtype,
        runner: Runner,
        forward: GraphedForward,
        drafts: GraphedDrafts | None,
        warm_up: WarmUp,
        kernels: Kernels,
        caches: Sequence[LayerCache],
        num_layers: int,
    ) -> None:
        self._path = path
        self._model = model
        self._weight_dtype = weight_dtype
        self._runner = runner
        self._forward = forward
        self._drafts = drafts
        self._warm_up = warm_up
        self._kernels = kernels
        self._caches = caches
        self._num_layers = num_layers

    def describe(self, counters: Counters) -> Effective:
        first = self._caches[0]
        origin = _k_scale_origin(self._caches)
        notes = []
        if origin == "default-1.0":
            notes.append("the fp8 cache uses the default scale 1.0, no calibrated one")
        return Effective(
            path=self._path,
            model_class=type(self._model).__name__,
            model_module=type(self._model).__module__,
            runner=self._runner.name,
            compile_mode=self._model.compile_mode(),
            graph_modes=dict(counters.steps),
            kernels={op: dict(calls) for op, calls in self._kernels.calls.items()},
            dtype=_KV_NAMES[self._weight_dtype],
            kv_dtype=_stored_kv_dtype(first),
            index_dtype=_stored_index_dtype(self._caches),
            hadamard=self._model.hadamard,
            kv_bytes_per_token=_bytes_per_token(self._caches),
            k_scale_origin=origin,
            device=str(first.kv.device),
            threads=torch.get_num_threads(),
            pid=os.getpid(),
            graphs=self._forward.captured.graphs,
            mtp=self._runner.speculation.mtp,
            mtp_forced_al=self._runner.speculation.forced_al,
            draft_modes={} if self._drafts is None else self._drafts.steps_by_mode(),
            breaks_per_layer=self._breaks_per_layer(),
            copies_per_step=self._warm_up.copies_per_step,
            waits_per_step=self._warm_up.waits_per_step,
            fallbacks=tuple(self._kernels.notes),
            notes=tuple(notes),
        )

    def _breaks_per_layer(self) -> float | None:
        breaks = self._forward.captured.breaks
        return breaks / self._num_layers if breaks else None


def _stored_kv_dtype(cache: LayerCache) -> str:
    return _KV_NAMES[cache.kv.dtype]


def _stored_index_dtype(caches: Sequence[LayerCache]) -> str:
    stored = next((cache.index for cache in caches if cache.index is not None), None)
    if stored is None:
        return "none"
    return "fp8" if stored.dtype is torch.uint8 else _KV_NAMES[stored.dtype]


def _bytes_per_token(caches: Sequence[LayerCache]) -> int:
    tensors = [t for cache in caches for t in (cache.kv, cache.index) if t is not None]
    tokens = caches[0].kv.shape[0] * caches[0].kv.shape[1]
    return sum(t.nbytes for t in tensors) // tokens


def _k_scale_origin(caches: Sequence[LayerCache]) -> str:
    if _stored_kv_dtype(caches[0]) != "fp8":
        return "none"
    return "default-1.0" if all(float(cache.k_scale) == 1.0 for cache in caches) else "checkpoint"
