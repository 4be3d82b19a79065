"""Puts prompts to an engine, greedy and by forced decode, and reads tokens and their scores."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from harness.client.answers import Answer, ask
from harness.client.endpoint import Endpoint
from harness.equivalence.compare import Answers, Ids, Scores
from harness.workload.source import Prompt
from paths.api import Request, SamplingParams, TokenLogprobs

ALTERNATIVES = 20
_FIRST_ID = 1 << 40  # far from the ids of any load on the same engine


class NotAnswered(Exception):
    """The engine refused or broke off a request; the message says what it said."""


@dataclass
class Asker:
    """Of one engine. `others` keep it busy where the concurrency is above the number of prompts."""

    endpoint: Endpoint
    prompts: Sequence[Prompt]
    others: Sequence[Prompt]
    exact_lengths: bool
    alternatives: int = ALTERNATIVES
    timeout_s: float = 600.0  # longest time without a token
    on_progress: Callable[[float], None] = lambda _: None
    _next_id: int = _FIRST_ID

    def answers(self, concurrency: int, reference: Sequence[Ids] | None) -> Answers:
        """Greedy answers, and scores of the reference's tokens; None: of these answers themselves.

        Raises EngineDied, and NotAnswered for a greedy request; scores that are refused are a reason.
        """
        tokens = [np.asarray(one.token_ids, np.int32) for one in self._ask(self._greedy(), concurrency)]
        given = tokens if reference is None else reference
        try:
            scored = [one.logprobs for one in self._ask(self._forced(given), concurrency)]
            if any(len(logprobs) != len(ids) for logprobs, ids in zip(scored, given, strict=True)):
                raise NotAnswered("the engine did not score every given token")
            given_for = [one for logprobs in scored for one in logprobs]
            sizes = {len(best) for one in given_for for best in (one.top_ids, one.top_logprobs)}
            if len(sizes) > 1:
                raise NotAnswered(f"the engine gave differing numbers of alternatives: {sorted(sizes)}")
        except NotAnswered as refused:
            return Answers(concurrency=concurrency, tokens=tokens, scores=None, reason=str(refused))
        return Answers(concurrency=concurrency, tokens=tokens, scores=[_scores(one) for one in scored])

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

    def _ask(self, asked: Sequence[Request], concurrency: int) -> list[Answer]:
        """Answers to `asked`, `concurrency` in flight. Raises EngineDied and NotAnswered."""
        mixed, ended = self._mixed(asked, concurrency), itertools.count(1)
        answers = ask(
            self.endpoint,
            mixed,
            concurrency=concurrency,
            timeout_s=self.timeout_s,
            on_answer=lambda *_: self.on_progress(next(ended) / len(mixed)),
        )
        error = next((one.error for one in answers if one.error is not None), None)
        if error is not None:
            raise NotAnswered(f"the engine refused a request: {error}")
        by_id = {request.request_id: answer for request, answer in zip(mixed, answers, strict=True)}
        return [by_id[request.request_id] for request in asked]

    def _mixed(self, asked: Sequence[Request], concurrency: int) -> list[Request]:
        """`asked` among others, evenly, so that as many run together as the concurrency says."""
        extra = [self._request(prompt) for prompt in self.others[: max(0, concurrency - len(asked))]]
        share = -(-len(extra) // len(asked))
        return [
            request
            for at, one in enumerate(asked)
            for request in (one, *extra[at * share : (at + 1) * share])
        ]


def _scores(logprobs: Sequence[TokenLogprobs]) -> Scores:
    return Scores(
        logprob=np.array([one.logprob for one in logprobs], dtype=np.float64),
        top_ids=np.stack([one.top_ids for one in logprobs]),
        top_logprobs=np.stack([one.top_logprobs for one in logprobs]).astype(np.float64),
    )
