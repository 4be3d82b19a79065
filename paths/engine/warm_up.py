"""Warm-up: requests through the whole engine, so that every kind of step has run once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch

from paths.api import EngineConfig, Request, SamplingParams
from paths.engine.batch import PAGE_SIZE
from paths.engine.runner import Runner
from paths.engine.transfers import TransferAudit

if TYPE_CHECKING:
    from paths.engine.core import EngineCore

CONCURRENCIES = (1, 2, 8, 64)  # decode rows of a step
DECODE_STEPS = 3
AUDITED_STEPS = 8


class WarmUp:
    """Greedy and sampled requests, short ones, one that ranks its keys, several sizes of batch.

    The last steps are audited: `copies_per_step` and `waits_per_step` are what was seen, None before.
    """

    def __init__(self, config: EngineConfig, runner: Runner, *, index_topk: int) -> None:
        self._config = config
        self._runner = runner
        self._index_topk = index_topk
        self._decode = DECODE_STEPS * (1 + config.mtp)  # output tokens
        self._next_id = -1
        self.copies_per_step: float | None = None
        self.waits_per_step: float | None = None

    def run(self, engine: EngineCore) -> None:
        for size in sorted({min(size, self._config.max_num_seqs) for size in CONCURRENCIES}):
            self._serve(engine, [self._request(3, self._decode) for _ in range(size)])
        self._serve(engine, list(self._special()))
        self._audit(engine)

    def _special(self) -> Iterator[Request]:
        """What no greedy short request runs."""
        yield self._request(5, self._decode, temperature=1.0, top_k=5, top_p=0.9)
        yield self._request(5, self._decode, min_tokens=2, ignore_eos=False, stop_token_ids=(0,))
        long = self._index_topk + 1
        if long + self._decode <= self._room():
            yield self._request(long, self._decode)

    def _audit(self, engine: EngineCore) -> None:
        """Whole decode steps of two requests, without the step that admits them."""
        most = 1 + self._config.mtp  # tokens that a step may yield
        steps = min(AUDITED_STEPS, (self._room() - 2) // most - 2)
        if steps < 1:
            return
        for _ in range(min(2, self._config.max_num_seqs)):
            engine.add(self._request(2, (steps + 2) * most))
        engine.step()
        audit = TransferAudit(torch.device(self._config.device))
        with audit.of_steps(self._runner):
            for _ in range(steps):
                engine.step()
        self._drain(engine)
        self.copies_per_step = len(audit.copies) / steps
        self.waits_per_step = max(len(audit.waits), audit.driver_waits) / steps

    def _serve(self, engine: EngineCore, requests: list[Request]) -> None:
        for request in requests:
            engine.add(request)
        self._drain(engine)

    @staticmethod
    def _drain(engine: EngineCore) -> None:
        while engine.has_work():
            engine.step()

    def _room(self) -> int:
        """Tokens that one request may have."""
        return min(self._config.max_model_len, self._config.kv_pages * PAGE_SIZE)

    def _request(self, prompt: int, output: int, **params: object) -> Request:
        """Ids below 0 are nobody's. Lengths are cut to what the engine takes."""
        room = self._room()
        prompt = max(1, min(prompt, room - output))
        output = max(1, min(output, room - prompt))
        self._next_id -= 1
        wanted = {"ignore_eos": True, "max_tokens": output, **params}
        wanted["min_tokens"] = min(int(str(wanted.get("min_tokens", 0))), output)
        return Request(
            request_id=self._next_id,
            prompt_ids=np.zeros(prompt, dtype=np.int32),
            params=SamplingParams(**wanted),  # type: ignore[arg-type]  # names and types are those above
        )
