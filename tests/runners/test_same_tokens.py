"""V1 and V2, read at once or late, with and without graphs: the same greedy tokens whatever the batches were.

Float32 sums depend on the batch in their last bits, so answers may part where a decision was a tie: between
two tokens, or between two keys that the indexer ranks. Each parting is looked at, and they are rare.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.runners.engines import make_engine, make_prompts, serve
from tests.runners.margins import MarginProbe

TIE = 1e-4
MOST_PARTINGS = 0.01
ARMS = {
    "dsa": [
        {"runner": "V1"},
        {"runner": "V2"},
        {"runner": "V2", "defer_output": True},
        {"runner": "V2", "defer_output": True, "graphs": "full_and_piecewise"},
    ],
    "generic": [
        {"runner": "V1"},
        {"runner": "V2"},
        {"runner": "V2", "defer_output": True, "graphs": "full"},
    ],
}


def check(model: str, *, count: int, seed: int, max_tokens: int = 30) -> None:
    prompts = dict(enumerate(make_prompts(count, seed=seed)))
    alone = make_engine(model, "V1")
    wanted = serve(alone, prompts, order=range(count), seed=0, max_tokens=max_tokens, most_at_once=1)
    probe = MarginProbe(alone)
    rng = np.random.default_rng(seed)
    preemptions = 0
    for number, arm in enumerate(ARMS[model]):
        engine = make_engine(model, **arm)
        got = serve(
            engine, prompts, order=rng.permutation(count).tolist(), seed=number, max_tokens=max_tokens
        )
        preemptions += engine.counters().preemptions
        parted = [i for i in prompts if got[i] != wanted[i]]
        for i in parted:
            at = next(n for n, (a, b) in enumerate(zip(got[i], wanted[i], strict=True)) if a != b)
            margin = probe.smallest([*prompts[i], *wanted[i][:at]])
            assert margin < TIE, f"{arm}: prompt {i} parts at token {at}, where the margin is {margin:.2e}"
        assert len(parted) <= MOST_PARTINGS * count, f"{arm}: {len(parted)} of {count} prompts part"
    assert preemptions > 0


@pytest.mark.parametrize("model", ARMS)
def test_runners_agree(model):
    check(model, count=40, seed=0, max_tokens=20)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("model", ARMS)
def test_runners_agree_on_many(model, seed):
    check(model, count=200, seed=seed, max_tokens=60)


@pytest.mark.parametrize("model", ["dsa", pytest.param("generic", marks=pytest.mark.slow)])
def test_nothing_parts_where_margins_are_wide(model):
    """No key is ranked, and prompts whose answer comes near a tie are left out: the others agree exactly."""
    count, max_tokens = 16, 16
    prompts = dict(enumerate(make_prompts(count, seed=7)))
    alone = make_engine(model, "V1", index_topk=256)
    wanted: dict[int, list[int]] = {}
    probe = MarginProbe(alone)
    for i, prompt in prompts.items():
        known = list(prompt)
        answer = serve(alone, {i: prompt}, order=[i], seed=0, max_tokens=max_tokens)[i]
        margins = [probe.smallest([*known, *answer[:n]]) for n in range(max_tokens)]
        if min(margins) > 10 * TIE:
            wanted[i] = answer
    assert len(wanted) > count / 2
    for number, arm in enumerate(ARMS[model]):
        engine = make_engine(model, index_topk=256, **arm)
        got = serve(engine, prompts, order=list(prompts)[::-1], seed=number, max_tokens=max_tokens)
        assert {i: got[i] for i in wanted} == wanted, arm
