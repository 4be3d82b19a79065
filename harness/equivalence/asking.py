"""Puts prompts to an engine, so many at a time, and reads tokens and their scores."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.client.endpoint import Endpoint
from harness.equivalence.compare import Answers, Ids, Scores
from harness.workload.source import Prompt
from paths.api import FinishReason, Request, SamplingParams, TokenEvent, TokenLogprobs

ALTERNATIVES = 20
_POLL_S = 0.5
_FIRST_ID = 1 << 40  # far from the ids of any load on the same engine


class NotAnswered(Exception):
    """The engine refused or broke off a request; the message says what it said."""


@dataclass
class _Heard:
    """What came back for one request so far."""

    tokens: list[Ids] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    def take(self, event: TokenEvent) -> None:
        self.tokens.append(event.token_ids)
        if event.detail is not None:
            self.logprobs.extend(event.detail.logprobs or ())

    @property
    def ids(self) -> Ids:
        return np.concatenate([np.empty(0, np.int32), *self.tokens])

    @property
    def scores(self) -> Scores:
        return Scores(
            logprob=np.array([one.logprob for one in self.logprobs], dtype=np.float64),
            top_ids=np.stack([one.top_ids for one in self.logprobs]),
            top_logprobs=np.stack([one.top_logprobs for one in self.logprobs]).astype(np.float64),
        )


@dataclass
class Asker:
    """Of one engine. `others` keep it busy where the concurrency is above the number of prompts."""

    endpoint: Endpoint
    prompts: Sequence[Prompt]
    others: Sequence[Prompt]
    exact_lengths: bool
    alternatives: int = ALTERNATIVES
    on_progress: Callable[[float], None] = lambda _: None
    _next_id: int = _FIRST_ID

    def answers(self, concurrency: int, reference: Sequence[Ids] | None) -> Answers:
        """Greedy answers, and scores of the reference's tokens; None: of these answers themselves.

        Raises EngineDied, and NotAnswered for a greedy request; scores that are refused are a reason.
        """
        tokens = [one.ids for one in self._ask(self._greedy(), concurrency)]
        given = tokens if reference is None else reference
        try:
            heard = self._ask(self._forced(given), concurrency)
            complete = [len(one.logprobs) == len(ids) for one, ids in zip(heard, given, strict=True)]
            if not all(complete):
                raise NotAnswered("the engine did not score every given token")
        except NotAnswered as refused:
            return Answers(concurrency=concurrency, tokens=tokens, scores=None, reason=str(refused))
        return Answers(concurrency=concurrency, tokens=tokens, scores=[one.scores for one in heard])

    def _params(self, prompt: Prompt, *, scored: bool = False) -> SamplingParams:
        return SamplingParams(
            max_tokens=prompt.max_tokens,
            min_tokens=prompt.max_tokens if self.exact_lengths and not scored else 0,
            ignore_eos=self.exact_lengths or scored,
            logprobs=self.alternatives if scored else None,
        )

    def _greedy(self) -> list[Request]:
        return [self._request(prompt) for prompt in self.prompts]

    def _forced(self, given: Sequence[Ids]) -> list[Request]:
        if any(len(ids) == 0 for ids in given):
            raise NotAnswered("an answer of the reference is empty: nothing to score")
        return [self._request(prompt, ids) for prompt, ids in zip(self.prompts, given, strict=True)]

    def _request(self, prompt: Prompt, forced: Ids | None = None) -> Request:
        self._next_id += 1
        return Request(
            request_id=self._next_id,
            prompt_ids=prompt.ids,
            params=self._params(prompt, scored=forced is not None),
            forced_ids=forced,
        )

    def _ask(self, asked: Sequence[Request], concurrency: int) -> list[_Heard]:
        """What came back for each of `asked`, `concurrency` in flight. Raises EngineDied and NotAnswered."""
        waiting = deque(self._mixed(asked, concurrency))
        heard = {request.request_id: _Heard() for request in waiting}
        running: set[int] = set()
        error: str | None = None
        total = len(waiting)
        while waiting or running:
            new = [waiting.popleft() for _ in range(min(concurrency - len(running), len(waiting)))]
            running |= {request.request_id for request in new}
            self.endpoint.submit(new)
            for _, events in self.endpoint.poll(_POLL_S):
                for event in events:
                    heard[event.request_id].take(event)
                    if event.finish_reason is not FinishReason.NONE:
                        running.discard(event.request_id)
                    if event.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
                        error = error or (event.detail.error if event.detail else None) or "no reason given"
            self.on_progress(1 - (len(waiting) + len(running)) / total)
        if error is not None:
            raise NotAnswered(f"the engine refused a request: {error}")
        return [heard[request.request_id] for request in asked]

    def _mixed(self, asked: Sequence[Request], concurrency: int) -> list[Request]:
        """`asked` among others, evenly, so that as many run together as the concurrency says."""
        extra = [self._request(prompt) for prompt in self.others[: max(0, concurrency - len(asked))]]
        share = -(-len(extra) // len(asked))
        return [
            request
            for at, one in enumerate(asked)
            for request in (one, *extra[at * share : (at + 1) * share])
        ]
