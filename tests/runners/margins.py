"""How close a decision was: between the two best tokens, or the last key chosen and the first left out."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paths.engine.batch import PAGE_SIZE, ForwardBatch, LayerCache
from paths.engine.core import EngineCore
from tests.engine.mock import request, run_until_idle


class MarginProbe:
    """An engine without graphs whose index selections are watched."""

    def __init__(self, engine: EngineCore) -> None:
        self._engine = engine
        self._next_id = 1_000_000
        model = engine._runner._head._model
        kernels = getattr(model, "_kernels", None) or model.kernels
        self._select = kernels._functions["index_topk"]
        kernels._functions["index_topk"] = self._watched
        self._index_margin = float("inf")

    def smallest(self, known: Sequence[int]) -> float:
        """Of the token after `known`, and of every selection on the way to it."""
        self._index_margin = float("inf")
        self._next_id += 1
        self._engine.add(request(self._next_id, list(known), max_tokens=1, logprobs=2, ignore_eos=True))
        (event,) = run_until_idle(self._engine)[self._next_id]
        best, second = event.detail.logprobs[0].top_logprobs.tolist()
        return min(best - second, self._index_margin)

    def _watched(self, q: Tensor, weights: Tensor, cache: LayerCache, batch: ForwardBatch, k: int) -> None:
        for row in torch.nonzero(batch.lengths > k)[:, 0].tolist():
            seen = torch.arange(int(batch.lengths[row]))
            table = batch.block_table[int(batch.req_rows[row])].long()
            keys = cache.index[table[seen // PAGE_SIZE], seen % PAGE_SIZE]
            scores = (weights[row][:, None] * torch.relu(q[row].float() @ keys.float().T)).sum(0)
            ranked = scores.sort(descending=True).values
            self._index_margin = min(self._index_margin, float(ranked[k - 1] - ranked[k]))
        self._select(q, weights, cache, batch, k)
