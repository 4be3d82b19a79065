"""An endpoint that answers questions on a script: it reads the question out of the prompt's ids."""

from __future__ import annotations

from collections import deque

import numpy as np

from harness.accuracy.prompts import PromptEncoder
from harness.client.endpoint import EngineDied
from paths.api import Counters, EventDetail, FinishReason, StartupReport, StepEvents


class AnsweringEndpoint:
    """`script(question, number)` gives a text, a (text, FinishReason), an Exception, or None: not yet.

    Every poll ends one request, the oldest. `before_poll(answered)` may raise or act.
    """

    startup = StartupReport(
        load_s=0.0, compile_s=0.0, capture_s=0.0, graphs=0, kv_cache_bytes=0, weight_bytes=0, kv_tokens=0
    )

    def __init__(self, rules, script, *, before_poll=None):
        self._encoder = PromptEncoder(rules)
        self._script, self._before_poll = script, before_poll
        self._waiting = deque()
        self.requests, self.peak, self.aborted = [], 0, []
        self.counts = Counters(accepted_at=[0, 0], verified_at=[0, 0])
        self.answered = 0

    @property
    def in_flight(self):
        return [request.request_id for request in self._waiting]

    def submit(self, requests):
        self._waiting.extend(requests)
        self.requests.extend(requests)
        self.peak = max(self.peak, len(self._waiting))

    def poll(self, timeout_s):
        if self._before_poll is not None and self._waiting:
            self._before_poll(self.answered)
        if not self._waiting:
            return []
        request = self._waiting.popleft()
        self.answered += 1
        prompt = self._encoder.decode(request.prompt_ids.tolist())
        said = self._script(prompt.rpartition("Question: ")[2].removesuffix("\nAnswer:"), self.answered)
        if said is None:
            self._waiting.appendleft(request)
            return []
        if isinstance(said, Exception):
            return [(0, self._events(request, [], FinishReason.ERROR, EventDetail(error=str(said))))]
        text, finish = said if isinstance(said, tuple) else (said, FinishReason.STOP)
        ids = self._encoder.encode(text, bos=False)[: request.params.max_tokens]
        self.counts.decode_tokens += len(ids)
        self.counts.decode_tokens_sparse += len(ids) // 4
        return [(0, self._events(request, ids, finish, None))]

    def _events(self, request, ids, finish, detail):
        return StepEvents(
            time_ns=0,
            request_ids=np.array([request.request_id], dtype=np.int64),
            token_counts=np.array([len(ids)], dtype=np.int32),
            token_ids=np.array(ids, dtype=np.int32),
            finish=np.array([finish], dtype=np.int8),
            drafted=np.array([3], dtype=np.int32),
            accepted=np.array([len(ids) % 4], dtype=np.int32),
            details={0: detail} if detail else {},
        )

    def abort(self, request_ids):
        self.aborted.extend(request_ids)
        kept = [request for request in self._waiting if request.request_id not in request_ids]
        gone = len(self._waiting) - len(kept)
        self._waiting = deque(kept)
        self._before_poll = None
        if gone:
            self.poll = lambda _timeout_s, ids=tuple(request_ids): self._gone(ids)

    def _gone(self, ids):
        del self.poll
        closed = StepEvents(
            time_ns=0,
            request_ids=np.array(ids, dtype=np.int64),
            token_counts=np.zeros(len(ids), dtype=np.int32),
            token_ids=np.zeros(0, dtype=np.int32),
            finish=np.full(len(ids), FinishReason.ABORT, dtype=np.int8),
        )
        return [(0, closed)]

    def counters(self):
        return Counters(**vars(self.counts))

    def effective(self):
        raise EngineDied("crash", "nobody asks for it")

    def close(self):
        pass
