"""Tokens that are read a step late: what ends, is preempted or aborted meanwhile, and what must not wait."""

from __future__ import annotations

import numpy as np
import pytest

from paths.api import FinishReason
from tests.engine.mock import (
    VOCAB,
    expected_tokens,
    finish_of,
    make_engine,
    request,
    run_until_idle,
    tokens_of,
)

EOS = (7, 11, 19, 23)  # of 263 tokens: an answer of 100 tokens meets one four times in five

SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))]


def drive(runner: str, seed: int, *, kv_pages: int, aborts: bool) -> tuple[dict[int, list], object]:
    """Random arrivals, lengths, minimum lengths and stop ids; every tenth request is aborted on its way."""
    rng = np.random.default_rng(seed)
    engine = make_engine(runner, kv_pages=kv_pages, max_num_seqs=6, eos=EOS)
    todo = []
    for i in range(30):
        most = int(rng.integers(1, 120))
        params = {
            "max_tokens": most,
            "min_tokens": int(rng.integers(0, most + 1)) if i % 3 == 0 else 0,
            "ignore_eos": i % 5 == 0,
            "stop_token_ids": (int(rng.integers(0, VOCAB)),) if i % 4 == 0 else (),
            "temperature": 1.0 if i % 7 == 0 else 0.0,
        }
        todo.append(request(i, rng.integers(0, VOCAB, size=int(rng.integers(1, 200))).tolist(), **params))
    events: dict[int, list] = {}
    started = 0
    while engine.has_work() or started < len(todo):
        for _ in range(int(rng.integers(0, 3))):
            if started < len(todo):
                engine.add(todo[started])
                started += 1
        if aborts and started and rng.random() < 0.05:
            engine.abort(int(rng.integers(0, started)))
        for event in engine.step():
            events.setdefault(event.request_id, []).append(event)
    return events, engine


@pytest.mark.parametrize("kv_pages", [64, 9])
@pytest.mark.parametrize("seed", SEEDS)
def test_same_tokens_and_ends_as_when_read_at_once(seed, kv_pages):
    late, engine = drive("V2 deferred", seed, kv_pages=kv_pages, aborts=False)
    at_once, _ = drive("V2", seed, kv_pages=kv_pages, aborts=False)
    assert {i: (tokens_of(e), finish_of(e)) for i, e in late.items()} == {
        i: (tokens_of(e), finish_of(e)) for i, e in at_once.items()
    }
    assert {finish_of(e) for e in late.values()} == {FinishReason.STOP, FinishReason.LENGTH}
    counters = engine.counters()
    assert counters.output_tokens == sum(len(tokens_of(e)) for e in late.values())
    assert (counters.preemptions > 0) == (kv_pages == 9)
    assert engine._scheduler.pool.free == kv_pages


@pytest.mark.parametrize("kv_pages", [64, 9])
@pytest.mark.parametrize("seed", SEEDS)
def test_aborts_with_tokens_in_flight(seed, kv_pages):
    """What came before an abort is right, nothing comes after it, and the slot's next request is unharmed."""
    late, engine = drive("V2 deferred", seed, kv_pages=kv_pages, aborts=True)
    whole, _ = drive("V2", seed, kv_pages=kv_pages, aborts=False)
    ends = {i: finish_of(e) for i, e in late.items()}
    assert FinishReason.ABORT in ends.values()
    assert len(late) == 30
    for i, end in ends.items():
        tokens = tokens_of(late[i])
        if end is FinishReason.ABORT:
            assert tokens == tokens_of(whole[i])[: len(tokens)]
        else:
            assert (tokens, end) == (tokens_of(whole[i]), finish_of(whole[i]))
    assert engine._scheduler.pool.free == kv_pages


def watched(engine) -> list[str]:
    """Notes launches and readings in their order."""
    seen: list[str] = []
    execute = engine._runner.execute

    def launch(plan, table):
        output = execute(plan, table)
        number = sum(word.startswith("launch") for word in seen)
        seen.append(f"launch {number}")
        get = output.get

        class Watched:
            ready = output.ready

            def get(self):
                seen.append(f"read {number}")
                return get()

        return Watched()

    engine._runner.execute = launch
    return seen


def test_the_next_step_is_launched_before_tokens_are_read():
    engine = make_engine("V2 deferred")
    seen = watched(engine)
    engine.add(request(1, [1, 2, 3], max_tokens=4))
    counts = []
    while engine.has_work():
        counts.append(len(engine.step().token_ids))
    assert seen == [
        "launch 0", "launch 1", "read 0", "launch 2", "read 1", "launch 3", "read 2", "read 3"
    ]  # fmt: skip
    assert counts == [0, 1, 1, 1, 1]


def test_where_the_output_is_ready_it_is_read_at_once():
    engine = make_engine("V2")
    seen = watched(engine)
    engine.add(request(1, [1, 2, 3], max_tokens=2))
    run_until_idle(engine)
    assert seen == ["launch 0", "read 0", "launch 1", "read 1"]


def test_an_output_that_is_not_ready_is_not_waited_for(monkeypatch):
    """As on a GPU, without `defer_output`."""
    engine = make_engine("V2")
    from paths.engine.output import AsyncOutput

    monkeypatch.setattr(AsyncOutput, "ready", lambda self: False)
    seen = watched(engine)
    engine.add(request(1, [1, 2, 3], max_tokens=2))
    run_until_idle(engine)
    assert seen == ["launch 0", "launch 1", "read 0", "read 1"]


def test_a_step_past_the_end_is_discarded_and_not_counted():
    prompt = [5, 9, 2]
    tokens = expected_tokens(prompt, 6)
    assert tokens[3] not in tokens[:3]
    engine = make_engine("V2 deferred", eos=[tokens[3]])
    engine.add(request(1, prompt, max_tokens=6))
    events = run_until_idle(engine)[1]
    counters = engine.counters()
    assert tokens_of(events) == tokens[:4]
    assert counters.output_tokens == 4
    assert counters.steps["NONE"] == 5  # one was in flight when the end was seen


@pytest.mark.parametrize("params", [{"logprobs": 1}, {"prompt_logprobs": 1}, {"forced_ids": [4, 5, 6, 7]}])
def test_requests_that_need_the_host_are_read_at_once_with_all_before_them(params):
    engine = make_engine("V2 deferred", eos=[int(expected_tokens([1, 2, 3], 3)[-1])])
    seen = watched(engine)
    engine.add(request(1, [1, 2, 3], max_tokens=50))
    engine.step()
    engine.add(request(2, [4, 5], max_tokens=4, ignore_eos=True, **params))
    events = run_until_idle(engine)
    assert seen[:6] == ["launch 0", "launch 1", "read 0", "read 1", "launch 2", "read 2"]
    assert tokens_of(events[1]) == expected_tokens([1, 2, 3], 3)
    if "logprobs" in params:
        assert [e.detail.logprobs[0].token_id for e in events[2]] == tokens_of(events[2])


def test_log_probs_stay_with_their_request_when_a_neighbour_ended_meanwhile():
    """The step in which request 2 is scored also holds a token of request 1, which ended a step before."""
    prompt = [1, 2, 3]
    engine = make_engine("V2 deferred", eos=[int(expected_tokens(prompt, 2)[-1])])
    engine.add(request(1, prompt, max_tokens=50))
    engine.step()
    engine.step()
    engine.add(request(2, [4, 5], max_tokens=3, ignore_eos=True, logprobs=1))
    events = run_until_idle(engine)
    assert finish_of(events[1]) is FinishReason.STOP
    scored = [e.detail.logprobs[0].token_id for e in events[2]]
    assert scored == tokens_of(events[2]) == expected_tokens([4, 5], 3)


def test_pages_of_a_request_that_ended_in_flight_serve_the_next_one():
    """One slot, few pages: the newcomer takes both while the last step of the old request is in flight."""
    prompt = list(range(60))
    eos = expected_tokens(prompt, 6)[-1]
    for count in (1, 5, 70):
        engine = make_engine("V2 deferred", max_num_seqs=1, kv_pages=3, eos=[int(eos)])
        engine.add(request(1, prompt, max_tokens=40))
        engine.add(request(2, prompt[::-1], max_tokens=count, ignore_eos=True))
        assert tokens_of(run_until_idle(engine)[2]) == expected_tokens(prompt[::-1], count)


def test_preemption_waits_until_all_tokens_are_known():
    engine = make_engine("V2 deferred", max_num_seqs=2, kv_pages=3)
    seen = watched(engine)
    for i in range(2):
        engine.add(request(i, list(range(60)), max_tokens=60))
    while engine._scheduler.preemptions == 0:
        before = len(seen)
        engine.step()
    # everything launched had been read when the victim was chosen
    launched = [word.split()[1] for word in seen[:before] if word.startswith("launch")]
    read = [word.split()[1] for word in seen[:before] if word.startswith("read")]
    assert launched == read
    events = run_until_idle(engine)
    assert engine.counters().preemptions >= 1
    assert all(finish_of(e) is FinishReason.LENGTH for e in events.values())
