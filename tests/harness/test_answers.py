"""Asking a list of requests: an engine that never ends is ended, whatever it sends meanwhile."""

import numpy as np
import pytest

from harness.accuracy.process import Relay
from harness.client.answers import ask
from harness.client.endpoint import EngineDied
from paths.api import FinishReason, Request, SamplingParams, StepEvents


def request(max_tokens=2, forced=None):
    return Request(
        request_id=7,
        prompt_ids=np.array([5], dtype=np.int32),
        params=SamplingParams(max_tokens=max_tokens),
        forced_ids=None if forced is None else np.array(forced, dtype=np.int32),
    )


def step(ids, *, rows=1, finish=FinishReason.NONE):
    return StepEvents(
        time_ns=0,
        request_ids=np.full(rows, 7, dtype=np.int64),
        token_counts=np.full(rows, len(ids), dtype=np.int32),
        token_ids=np.array(ids, dtype=np.int32),
        finish=np.full(rows, finish, dtype=np.int8),
    )


class Babbling:
    """Answers every poll with the next of `steps`, the last one for ever; takes no abort."""

    def __init__(self, *steps):
        self._steps = list(steps)

    def submit(self, requests):
        pass

    def abort(self, request_ids):
        pass

    def poll(self, timeout_s):
        return [(0, self._steps.pop(0) if len(self._steps) > 1 else self._steps[0])]


@pytest.mark.parametrize("nothing", [step([], rows=0), step([])])
def test_events_without_tokens_are_no_answer(nothing):
    with pytest.raises(EngineDied, match=r"no token for 0\.05 s with 1 requests outstanding") as died:
        ask(Babbling(step([3]), nothing), [request()], concurrency=1, timeout_s=0.05)
    assert died.value.kind == "timeout"


@pytest.mark.parametrize(("asked", "most"), [(request(), 2), (request(2, forced=[1, 2, 3]), 3)])
def test_an_answer_without_end_is_ended(asked, most):
    with pytest.raises(EngineDied, match=f"{most + 1} tokens of at most {most} and goes on"):
        ask(Babbling(step([3])), [asked], concurrency=1, timeout_s=60)


def test_a_whole_answer_is_taken():
    (answer,) = ask(
        Babbling(step([3]), step([4], finish=FinishReason.LENGTH)), [request()], concurrency=1, timeout_s=60
    )
    assert (answer.token_ids, answer.finish) == ([3, 4], FinishReason.LENGTH)


def test_an_engine_that_takes_no_abort_is_given_up():
    relay = Relay(Babbling(step([3])), lambda _: None, grace_s=0.05)
    relay.handle(("add", [request()]))
    with pytest.raises(EngineDied, match="does not end 1 requests that were given up"):
        relay.settle()
