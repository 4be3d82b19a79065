"""Start-up of a built-in engine: compile, capture, warm up; what each costs, and what a step then moves."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from paths.api import EngineConfig, StartupReport, UserError
from paths.engine.batch import LayerCache, padding_batch
from paths.engine.heap import use_huge_pages
from paths.engine.runner import Model
from paths.engine.warm_up import WarmUp
from paths.graphs.drafts import GraphedDrafts
from paths.graphs.forward import GraphedForward
from paths.models.weights import Weights

if TYPE_CHECKING:
    from paths.engine.core import EngineCore


class Startup:
    """Runs and times start-up, and remembers how many compilations belong to it."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        model: Model,
        forward: GraphedForward,
        drafts: GraphedDrafts | None,
        sizes: Sequence[int],
        index_topk: int,
        caches: Sequence[LayerCache],
        weights: Weights,
        warm_up: WarmUp,
        load_s: float,
        kernel_build_s: float,
    ) -> None:
        self._config = config
        self._sizes = sizes
        self._model = model
        self._forward = forward
        self._drafts = drafts
        self._index_topk = index_topk
        self._caches = caches
        self._weight_bytes = weights.num_bytes
        self._warm_up = warm_up
        self._load_s = load_s
        self._kernel_build_s = kernel_build_s
        self._compiles_at_warm_up = 0

    def run(self, engine: EngineCore) -> StartupReport:
        started = time.perf_counter()
        self._compile()
        compiled = time.perf_counter()
        captured = [part.capture() for part in (self._forward, self._drafts) if part is not None]
        capture_s = time.perf_counter() - compiled
        self._warm_up.run(engine)
        if self._config.device == "cpu":
            use_huge_pages()
        self._compiles_at_warm_up = self._model.compile_count()
        caches = [t for cache in self._caches for t in (cache.kv, cache.index) if t is not None]
        return StartupReport(
            load_s=self._load_s,
            compile_s=compiled - started,
            capture_s=capture_s,
            graphs=sum(report.graphs for report in captured),
            graph_memory_bytes=sum(report.memory_bytes for report in captured),
            kernel_build_s=self._kernel_build_s,
            kv_cache_bytes=sum(t.nbytes for t in caches),
            weight_bytes=self._weight_bytes,
            kv_tokens=self._config.kv_pages * self._caches[0].kv.shape[1],
        )

    def recompiles(self) -> int:
        return self._model.compile_count() - self._compiles_at_warm_up

    def _compile(self) -> None:
        """Every kind of size once: one row, some rows, most rows. First calls also allocate."""
        limit = self._config.max_num_batched_tokens
        for size in (*self._sizes, limit):
            batch = padding_batch(min(size, limit), self._index_topk, torch.device(self._config.device))
            hidden = self._model.forward(batch, self._caches)
            logits = [self._model.logits(hidden[:1])]
            if self._drafts is not None:
                for step, states in self._drafts.compile(batch):
                    logits.append(self._model.draft_logits(states[:1], step=step))
            if not all(torch.isfinite(values).all() for values in logits):
                said = f"warm-up with {size} rows gave logits that are not finite"
                if self._config.model.checkpoint == "dummy":
                    raise RuntimeError(said)
                raise UserError(f"{self._config.model.checkpoint}: {said}; copy the checkpoint again")
