"""Asks an endpoint a list of requests, so many at a time, and collects whole answers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from harness.client.endpoint import Endpoint, EngineDied
from paths.api import FinishReason, Request, StepEvents, TokenLogprobs

_POLL_S = 0.5


@dataclass(kw_only=True)
class Answer:
    """Everything that came back for one request."""

    token_ids: list[int] = field(default_factory=list)
    finish: FinishReason = FinishReason.NONE
    text: str | None = None  # cut before a stop string, by engines that say so
    error: str | None = None
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # of the tokens, where asked for
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    verifications: int | None = None  # steps that verified at least one draft; None: the engine tells of none
    drafted: int = 0  # drafts verified
    accepted: int = 0
    first_accepted: int = 0  # verifications that accepted their first draft


def ask(
    endpoint: Endpoint,
    requests: Sequence[Request],
    *,
    concurrency: int,
    timeout_s: float,
    on_answer: Callable[[int, Answer], None] | None = None,
) -> list[Answer]:
    """Answers in the order of `requests`; `concurrency` are in flight until the last was sent.

    `on_answer` receives the index and the answer of each as it ends. Raises EngineDied, also for an engine
    that answers what it was not asked, and for one that gives no token and ends nothing for `timeout_s`
    seconds, whatever else it sends.
    """
    waiting = deque(requests)
    index = {request.request_id: i for i, request in enumerate(requests)}
    answers = [Answer() for _ in requests]
    running: set[int] = set()
    heard = time.monotonic()
    while waiting or running:
        batch = [waiting.popleft() for _ in range(min(len(waiting), concurrency - len(running)))]
        running.update(request.request_id for request in batch)
        endpoint.submit(batch)
        for _, events in endpoint.poll(min(_POLL_S, timeout_s)):
            if len(events.token_ids) or events.finish.any():
                heard = time.monotonic()
            for request_id in _absorb(events, answers, index, running):
                running.discard(request_id)
                if on_answer is not None:
                    on_answer(index[request_id], answers[index[request_id]])
        if running and time.monotonic() - heard > timeout_s:
            raise EngineDied(
                "timeout",
                f"no token for {timeout_s:g} s with {len(running)} requests outstanding"
                f" (timeout_s={timeout_s:g})",
            )
        _refuse_endless(requests, answers, index, running)
    return answers


def _refuse_endless(
    requests: Sequence[Request], answers: Sequence[Answer], index: dict[int, int], running: set[int]
) -> None:
    """Raises EngineDied for an answer that grows beyond what was asked: it would never end."""
    for request_id in running:
        request = requests[index[request_id]]
        most = max(
            request.params.max_tokens, len(request.forced_ids) if request.forced_ids is not None else 0
        )
        got = len(answers[index[request_id]].token_ids)
        if got > most:
            raise EngineDied(
                "crash", f"the engine gave request {request_id} {got} tokens of at most {most} and goes on"
            )


def _absorb(
    events: StepEvents, answers: Sequence[Answer], index: dict[int, int], running: set[int]
) -> list[int]:
    """Enter one step; returns the ids of requests that ended."""
    ended = []
    for row, event in enumerate(events):
        if event.request_id not in running:
            raise EngineDied("crash", f"the engine answered request {event.request_id}, which is not running")
        answer = answers[index[event.request_id]]
        answer.token_ids.extend(event.token_ids.tolist())
        _enter_drafts(answer, events, row)
        detail = event.detail
        if detail is not None:
            answer.text = detail.text if detail.text is not None else answer.text
            answer.error = detail.error or answer.error
            answer.logprobs.extend(detail.logprobs or ())
            if detail.prompt_logprobs is not None:
                answer.prompt_logprobs = detail.prompt_logprobs
        if event.finish_reason is not FinishReason.NONE:
            answer.finish = event.finish_reason
            if event.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
                answer.error = answer.error or f"ended with reason {event.finish_reason.word}"
            ended.append(event.request_id)
    return ended


def _enter_drafts(answer: Answer, events: StepEvents, row: int) -> None:
    if events.drafted is None or events.accepted is None:
        return
    drafted, accepted = int(events.drafted[row]), int(events.accepted[row])
    answer.verifications = (answer.verifications or 0) + (drafted > 0)
    answer.drafted += drafted
    answer.accepted += accepted
    answer.first_accepted += accepted > 0
