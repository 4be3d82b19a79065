"""lm-evaluation-harness's view of an engine. Imports lm-eval: for the scoring process only."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from harness.accuracy.prompts import PromptEncoder
from harness.client.answers import Answer, ask
from harness.client.endpoint import Endpoint
from paths.api import Request, SamplingParams, TokenLogprobs

MAX_GEN_TOKS = 256  # lm-eval's own default, of tasks that do not say

OnAnswer = Callable[[Instance, Request, Answer], None]
_Scored = tuple[tuple[str, str], list[int], list[int]]  # texts, context ids, continuation ids


class EndpointLM(TemplateLM):
    """Any `Endpoint` as a model of lm-eval, with `concurrency` requests in flight.

    `timeout_s`: longest time without a token. `on_answer` receives each generated answer as it ends, long
    before lm-eval scores it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        encoder: PromptEncoder,
        *,
        concurrency: int,
        timeout_s: float = 600.0,
        on_answer: OnAnswer | None = None,
    ) -> None:
        super().__init__()
        self._endpoint, self._encoder = endpoint, encoder
        self._concurrency, self._timeout_s = concurrency, timeout_s
        self._on_answer = on_answer
        self._max_length = encoder.rules.max_length
        self._ids = itertools.count()

    @property
    def eot_token_id(self) -> int:
        """Stands before a text that is scored without context: BOS, or EOS where there is none."""
        return self._encoder.rules.prefix_id

    @property
    def tokenizer_name(self) -> str:
        return self._encoder.rules.tokenizer

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        return self._encoder.encode(string, bos=add_special_tokens is not False)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answers cut before the first of `until`; temperature 0 unless the task samples."""
        asked = [self._generation(*request.args) for request in requests]

        def report(index: int, answer: Answer) -> None:
            if self._on_answer is not None:
                self._on_answer(requests[index], asked[index], answer)

        answers = self._ask(asked, report)
        return [
            answer_text(answer, request.params.stop, self._encoder)
            for answer, request in zip(answers, asked, strict=True)
        ]

    def _ask(
        self, asked: list[Request], on_answer: Callable[[int, Answer], None] | None = None
    ) -> list[Answer]:
        return ask(
            self._endpoint,
            asked,
            concurrency=self._concurrency,
            timeout_s=self._timeout_s,
            on_answer=on_answer,
        )

    def _generation(self, context: str, options: dict[str, Any]) -> Request:
        given = normalize_gen_kwargs(options, MAX_GEN_TOKS)
        ids = self.tok_encode(context) or [self.eot_token_id]
        params = SamplingParams(
            max_tokens=given["max_gen_toks"],
            temperature=given["temperature"] if given["do_sample"] else 0.0,
            top_p=float(options.get("top_p", 1.0)),
            top_k=int(options.get("top_k", 0)),
            stop=tuple(text for text in given["until"] if text),
        )
        return self._request(ids, params)

    def _request(self, ids: Sequence[int], params: SamplingParams) -> Request:
        prompt = np.asarray(ids, dtype=np.int32)
        return Request(request_id=next(self._ids), prompt_ids=prompt, params=params)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Natural log-probability of whole texts, in windows of the model's length, each token once."""
        windows: list[_Scored] = []
        counts = []
        for (text,) in (request.args for request in requests):
            pairs = get_rolling_token_windows(
                token_list=self.tok_encode(text, add_special_tokens=False),
                prefix_token=self.prefix_token_id,
                max_seq_len=self._max_length - 2,  # the prefix, and one token that every request generates
                context_len=1,
            )
            found = [(("", ""), *make_disjoint_window(pair)) for pair in pairs]
            windows += found
            counts.append(len(found))
        scores = iter(self._loglikelihood_tokens(windows))
        return [sum(logprob for logprob, _ in itertools.islice(scores, count)) for count in counts]

    def _loglikelihood_tokens(self, requests: list[_Scored], **_: Any) -> list[tuple[float, bool]]:
        """Log-probability of each continuation behind its context, and whether it is the greedy one.

        Contexts that are too long lose their beginning. Raises ValueError for a request that failed.
        """
        room = self._max_length - 1  # a request generates at least one token
        params = SamplingParams(max_tokens=1, ignore_eos=True, prompt_logprobs=1)
        asked = [self._request([*context, *more][-room:], params) for _, context, more in requests]
        answers = self._ask(asked)
        return [_continuation(answer, more) for answer, (_, _, more) in zip(answers, requests, strict=True)]


def _continuation(answer: Answer, ids: Sequence[int]) -> tuple[float, bool]:
    if answer.prompt_logprobs is None:
        raise ValueError(f"the engine gave no log-probabilities: {answer.error or 'no reason given'}")
    if not ids:
        return 0.0, True
    scored: list[TokenLogprobs] = [
        entry for entry in answer.prompt_logprobs[-len(ids) :] if entry is not None
    ]
    if [entry.token_id for entry in scored] != list(ids):
        raise ValueError(f"the engine scored {len(scored)} other tokens than the {len(ids)} that were asked")
    greedy = all(int(entry.top_ids[0]) == entry.token_id for entry in scored)
    return float(sum(entry.logprob for entry in scored)), greedy


def answer_text(answer: Answer, stop: Sequence[str], encoder: PromptEncoder) -> str:
    """The answer before the first stop string, also of an engine that leaves the cutting to its client."""
    if answer.error is not None:
        return ""
    text = encoder.decode(answer.token_ids) if answer.text is None else answer.text
    cuts = [at for word in stop if (at := text.find(word)) >= 0]
    return text[: min(cuts)] if cuts else text
