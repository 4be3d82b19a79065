"""Scheduling, paging, stopping and events, on a model that sees every misplaced key."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paths.api import FinishReason, UserError
from tests.engine.mock import (
    RUNNERS,
    VOCAB,
    MockModel,
    expected_tokens,
    finish_of,
    make_engine,
    request,
    run_until_idle,
    tokens_of,
)

pytestmark = pytest.mark.parametrize("runner", RUNNERS)


def prompts(count: int, *, low: int, high: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCAB, size=int(n)).tolist() for n in rng.integers(low, high, size=count)]


@pytest.mark.parametrize("length", [1, 63, 64, 65, 100, 111, 128, 129])
@pytest.mark.parametrize("chunk", [1, 7, 64, 512])
def test_one_request_in_any_chunking(runner, length, chunk):
    engine = make_engine(runner, max_num_batched_tokens=chunk)
    (prompt,) = prompts(1, low=length, high=length + 1)
    engine.add(request(3, prompt, max_tokens=70))
    events = run_until_idle(engine)[3]
    assert tokens_of(events) == expected_tokens(prompt, 70)
    assert finish_of(events) is FinishReason.LENGTH


@pytest.mark.parametrize("kv_pages", [64, 9])
@pytest.mark.parametrize("seed", range(5))
def test_random_traffic_with_and_without_preemption(runner, kv_pages, seed):
    engine = make_engine(runner, kv_pages=kv_pages, max_num_seqs=6)
    rng = np.random.default_rng(seed)
    todo = prompts(30, low=1, high=200, seed=seed)
    lengths = rng.integers(1, 120, size=len(todo))
    events: dict[int, list] = {}
    started = 0
    while engine.has_work() or started < len(todo):
        for _ in range(int(rng.integers(0, 3))):
            if started < len(todo):
                engine.add(request(started, todo[started], max_tokens=int(lengths[started])))
                started += 1
        if engine.has_work():
            for event in engine.step():
                events.setdefault(event.request_id, []).append(event)
    for i, prompt in enumerate(todo):
        assert tokens_of(events[i]) == expected_tokens(prompt, int(lengths[i])), f"request {i}"
    counters = engine.counters()
    assert counters.output_tokens == lengths.sum()
    assert (counters.preemptions > 0) == (kv_pages == 9)
    assert engine._scheduler.pool.free == kv_pages  # every page came back


def test_eos_stops_and_is_emitted(runner):
    prompt = prompts(1, low=20, high=21)[0]
    tokens = expected_tokens(prompt, 10)
    eos = next(t for i, t in enumerate(tokens) if i >= 2 and t not in tokens[:i])
    engine = make_engine(runner, eos=[eos])
    engine.add(request(1, prompt, max_tokens=10))
    engine.add(request(2, prompt, max_tokens=10, ignore_eos=True))
    events = run_until_idle(engine)
    assert tokens_of(events[1]) == tokens[: tokens.index(eos) + 1]
    assert finish_of(events[1]) is FinishReason.STOP
    assert tokens_of(events[2]) == tokens
    assert finish_of(events[2]) is FinishReason.LENGTH


def test_min_tokens_forbids_eos_until_then(runner):
    prompt = prompts(1, low=20, high=21)[0]
    eos = expected_tokens(prompt, 1)[0]
    engine = make_engine(runner, eos=[eos])
    engine.add(request(1, prompt, max_tokens=6, min_tokens=3))
    tokens = tokens_of(run_until_idle(engine)[1])
    assert eos not in tokens[:3]
    assert len(tokens) >= 3


def test_min_tokens_forbids_stop_ids_where_eos_is_ignored(runner):
    prompt = prompts(1, low=20, high=21)[0]
    first, second = expected_tokens(prompt, 2)
    engine = make_engine(runner, eos=[second])
    params = {"min_tokens": 3, "stop_token_ids": (first,), "ignore_eos": True}
    engine.add(request(1, prompt, max_tokens=6, **params))
    engine.add(request(2, prompt, max_tokens=6, min_tokens=3, ignore_eos=True))
    events = run_until_idle(engine)
    assert first not in tokens_of(events[1])[:3]
    assert tokens_of(events[2]) == expected_tokens(prompt, 6), "nothing of it is forbidden"


def test_stop_token_ids(runner):
    prompt = prompts(1, low=20, high=21)[0]
    tokens = expected_tokens(prompt, 10)
    engine = make_engine(runner)
    engine.add(request(1, prompt, max_tokens=10, stop_token_ids=(tokens[4],)))
    events = run_until_idle(engine)[1]
    assert tokens_of(events) == tokens[: tokens.index(tokens[4]) + 1]
    assert finish_of(events) is FinishReason.STOP


def test_forced_decode_feeds_and_scores_the_given_tokens(runner):
    prompt = prompts(1, low=20, high=21)[0]
    forced = [5, 99, 0, 7]
    engine = make_engine(runner, eos=[99])
    engine.add(request(1, prompt, max_tokens=50, forced_ids=forced, logprobs=-1))
    events = run_until_idle(engine)[1]
    assert tokens_of(events) == forced
    assert finish_of(events) is FinishReason.LENGTH
    known = list(prompt)
    for event, token in zip(events, forced, strict=True):
        (scored,) = event.detail.logprobs
        assert scored.token_id == token
        assert int(scored.top_logprobs.argmax()) == expected_tokens(known, 1)[0]
        assert scored.logprob == pytest.approx(float(scored.top_logprobs[token]))
        known.append(token)


@pytest.mark.parametrize("chunk", [1, 7, 512])
def test_prompt_logprobs_cover_every_token_once(runner, chunk):
    prompt = prompts(1, low=70, high=71)[0]
    engine = make_engine(runner, max_num_batched_tokens=chunk)
    engine.add(request(1, prompt, max_tokens=2, prompt_logprobs=1))
    events = run_until_idle(engine)[1]
    scores = events[0].detail.prompt_logprobs
    assert scores[0] is None
    assert [s.token_id for s in scores[1:]] == prompt[1:]
    best = [int(s.top_ids[0]) for s in scores[1:]]
    assert best == [expected_tokens(prompt[: i + 1], 1)[0] for i in range(len(prompt) - 1)]
    assert events[1].detail is None


def test_abort_running_waiting_and_unknown(runner):
    engine = make_engine(runner, max_num_seqs=1)
    engine.add(request(1, [1, 2, 3], max_tokens=50))
    engine.add(request(2, [1, 2, 3], max_tokens=50))
    engine.step()
    for request_id in (1, 2, 77):
        engine.abort(request_id)
    events = run_until_idle(engine)
    assert {i: finish_of(e) for i, e in events.items()} == {1: FinishReason.ABORT, 2: FinishReason.ABORT}
    engine.add(request(3, [4, 5], max_tokens=4))
    assert tokens_of(run_until_idle(engine)[3]) == expected_tokens([4, 5], 4)


def test_refused_request_comes_back_as_error_event(runner):
    engine = make_engine(runner)
    engine.refuse(9, "too long")
    (event,) = run_until_idle(engine)[9]
    assert event.finish_reason is FinishReason.ERROR
    assert event.detail.error == "too long"


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ({"prompt": []}, "empty"),
        ({"prompt": [VOCAB]}, f"token id {VOCAB}"),
        ({"prompt": [-1]}, "token id -1"),
        ({"prompt": [1] * 90, "max_tokens": 50}, "exceed the context of 100"),
        ({"prompt": [1], "max_tokens": 0}, "max_tokens 0"),
        ({"prompt": [1], "min_tokens": 9}, "min_tokens 9"),
        ({"prompt": [1], "temperature": -1.0}, "temperature -1.0"),
        ({"prompt": [1], "temperature": float("nan")}, "temperature nan"),
        ({"prompt": [1], "top_p": 0.0}, "top_p 0.0"),
        ({"prompt": [1], "top_k": -3}, "top_k -3"),
        ({"prompt": [1], "top_k": 2**31}, "top_k 2147483648"),
        ({"prompt": [1], "seed": 2**63}, "seed 9223372036854775808"),
        ({"prompt": [1], "stop_token_ids": (99999,), "min_tokens": 1}, "stop_token_ids: 99999"),
        ({"prompt": [1], "stop_token_ids": (-1,)}, "stop_token_ids: -1"),
        ({"prompt": [[1, 2]]}, "one row of integer token ids"),
        ({"prompt": [1], "logprobs": -2}, "logprobs -2"),
        ({"prompt": [1], "stop": ("x",)}, "tokenizer"),
        ({"prompt": [1], "forced_ids": [1, 1000]}, "forced_ids"),
    ],
)
def test_impossible_requests_are_refused_with_a_reason(runner, bad, said):
    engine = make_engine(runner, max_model_len=100)
    with pytest.raises(UserError, match=said.replace("+", r"\+")):
        engine.add(request(1, **bad))
    assert not engine.has_work()


def test_request_larger_than_the_cache_is_refused(runner):
    engine = make_engine(runner, kv_pages=2)
    with pytest.raises(UserError, match="need 3 KV pages, the cache has 2"):
        engine.add(request(1, [1] * 100, max_tokens=29))
    engine.add(request(1, [1] * 100, max_tokens=28))


def test_duplicate_request_id_is_refused(runner):
    engine = make_engine(runner)
    engine.add(request(1, [1]))
    with pytest.raises(UserError, match="already in use"):
        engine.add(request(1, [2]))


def test_counters_tell_prompt_decode_and_sparse_tokens(runner):
    engine = make_engine(runner, index_topk=8)
    engine.add(request(1, [1] * 6, max_tokens=5))
    run_until_idle(engine)
    counters = engine.counters()
    assert counters.prompt_tokens == 6
    assert counters.decode_tokens == 4  # the first output token comes from the prompt's last row
    assert counters.decode_tokens_sparse == 2  # contexts 7, 8, 9, 10 against a top-k of 8
    assert counters.output_tokens == 5
    assert (sum(counters.steps.values()), counters.uniform_steps) == (5, 4)


def test_sampled_output_does_not_depend_on_the_batch(runner):
    prompt = prompts(1, low=20, high=21)[0]
    alone = make_engine(runner)
    alone.add(request(1, prompt, max_tokens=20, temperature=3.0, seed=11))
    expected = tokens_of(run_until_idle(alone)[1])
    crowd = make_engine(runner)
    for i in range(2, 7):
        crowd.add(request(i, prompts(1, low=9, high=90, seed=i)[0], max_tokens=30, temperature=2.0))
    crowd.step()
    crowd.add(request(1, prompt, max_tokens=20, temperature=3.0, seed=11))
    assert tokens_of(run_until_idle(crowd)[1]) == expected
    assert expected != expected_tokens(prompt, 20)


def test_nan_logits_are_counted(runner, monkeypatch):
    engine = make_engine(runner)
    engine.add(request(1, [5, 6, 7], max_tokens=3))
    engine.step()
    assert engine.counters().nan_logit_rows == 0
    logits = MockModel.logits
    monkeypatch.setattr(MockModel, "logits", lambda self, hidden: logits(self, hidden) * torch.nan)
    run_until_idle(engine)
    assert engine.counters().nan_logit_rows == 2


def test_sparse_and_decode_tokens_of_a_recomputed_request(runner):
    engine = make_engine(runner, index_topk=8, max_num_batched_tokens=7)
    engine.add(request(1, [1] * 6, max_tokens=30))
    for _ in range(12):
        engine.step()
    before = engine.counters()
    state = engine._scheduler.finish(0)
    engine._scheduler.waiting.appendleft(state)
    known = 6 + len(state.output_ids)
    while engine._table.computed[0] < known:
        engine.step()
    after = engine.counters()
    assert after.prompt_tokens - before.prompt_tokens == 6
    assert after.decode_tokens - before.decode_tokens == known - 6
    assert after.decode_tokens_sparse - before.decode_tokens_sparse == known - 8


def test_parameters_and_seeds_follow_their_request_through_reused_slots(runner):
    """Three slots, twelve requests: a slot's or row's last parameters must not reach its next request."""
    todo = [
        request(
            i,
            prompts(1, low=3, high=40, seed=i)[0],
            max_tokens=4 + 3 * (i % 4),
            temperature=(0.0, 3.0, 6.0)[i % 3],
            top_k=(0, 7, 2, 0)[i % 4],
            top_p=(1.0, 0.9)[i % 2],
            seed=(100 + i, None)[i % 5 == 0],
        )
        for i in range(12)
    ]
    crowd = make_engine(runner, max_num_seqs=3)
    for one in todo:
        crowd.add(one)
    together = run_until_idle(crowd)
    for one in todo:
        alone = make_engine(runner)
        alone.add(one)
        expected = tokens_of(run_until_idle(alone)[one.request_id])
        assert tokens_of(together[one.request_id]) == expected, f"request {one.request_id}"


def test_seeds_make_the_answers(runner):
    """Equal prompts: equal seeds answer alike, other seeds otherwise, whichever slots they are in."""
    engine = make_engine(runner, max_num_seqs=2)
    for i, seed in enumerate((1, 2, 1, 3, 2)):
        engine.add(request(i, [4, 5, 6], max_tokens=12, temperature=5.0, seed=seed))
    tokens = {i: tokens_of(e) for i, e in run_until_idle(engine).items()}
    assert tokens[0] == tokens[2] and tokens[1] == tokens[4]
    assert len({tuple(t) for t in tokens.values()}) == 3
