"""Sees every kernel call of a capture: counts it, and refuses what a graph must not hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from paths.engine.batch import ForwardBatch, LayerCache
from paths.engine.static_inputs import StaticInputs
from paths.graphs.breakable import BreakableCapture
from paths.kernels.registry import Kernels

# these read as many keys as a request has: captured, they would go on reading those of the capture
LENGTH_DEPENDENT = frozenset({"index_topk", "sparse_mla", "index_to_slot", "dense_mha"})
CACHE_WRITERS = frozenset({"mla_cache_write", "index_k_write", "fused_norm_rope"})


class KernelHook:
    """The recorder of `kernels` while `capture` runs.

    calls: how often each (op, implementation) is called by the captured segments, which replay must add.
    """

    def __init__(
        self,
        capture: BreakableCapture,
        *,
        kernels: Kernels,
        inputs: StaticInputs,
        caches: Sequence[LayerCache],
    ) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self._capture = capture
        self._kernels = kernels
        self._slots = inputs.slot_mapping
        self._caches = caches
        self._layer_of = {id(cache): layer for layer, cache in enumerate(caches)}

    def kernel(
        self,
        op: str,
        implementation: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Raises RuntimeError, naming the layer."""
        capture = self._capture
        if not capture.capturing:
            return function(*args, **kwargs)
        if op in LENGTH_DEPENDENT and not capture.inline:
            raise RuntimeError(
                f"{self._layer(args)}: {op} was called inside a captured segment: its lengths would be those "
                "of the capture forever; declare the attention a break point"
            )
        if op in CACHE_WRITERS:
            self._check_writer(op, args)
        self.calls[op, implementation] += 1
        if implementation == "cpp" and not self._kernels.checks:
            return function(*args, **kwargs)  # one operator, with its arguments spread out
        return capture.call(function, args, kwargs)

    def _check_writer(self, op: str, args: tuple[Any, ...]) -> None:
        """A cache writer must be given the static slots and the engine's own caches."""
        where = self._layer(args)
        batches = [arg for arg in args if isinstance(arg, ForwardBatch)]
        slots = batches[0].slot_mapping if batches else args[-2]
        cache = next((arg for arg in args if isinstance(arg, LayerCache)), None)
        if not isinstance(slots, Tensor) or cache is None or not isinstance(cache.kv, Tensor):
            raise RuntimeError(f"{where}: {op} has no slots or no cache at capture: its write would be lost")
        if slots.data_ptr() != self._slots.data_ptr() or slots.dtype != self._slots.dtype:
            raise RuntimeError(
                f"{where}: {op} writes to slots that are not the static ones: every replay would write where "
                "the capture did"
            )
        if id(cache) not in self._layer_of:
            raise RuntimeError(f"{where}: {op} writes to a cache that is not one of the engine's")

    def _layer(self, args: tuple[Any, ...]) -> str:
        layers = [self._layer_of[id(arg)] for arg in args if id(arg) in self._layer_of]
        return f"layer {layers[0]}" if layers else "a layer without a cache"
