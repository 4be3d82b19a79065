"""Hundreds of steps of mixed traffic through whole engines: graphs give what eager code gives, to the bit."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from paths.graphs.config import GraphMode
from tests.engine.mock import finish_of, request
from tests.runners.engines import VOCAB, make_engine

STEPS = 200
ARMS = {
    "dsa V2, full and piecewise": ("dsa", {"runner": "V2", "graphs": "full_and_piecewise"}),
    "dsa V2 deferred, piecewise": ("dsa", {"runner": "V2", "graphs": "piecewise", "defer_output": True}),
    "dsa V1, full": ("dsa", {"runner": "V1", "graphs": "full"}),
    "generic V2, full": ("generic", {"runner": "V2", "graphs": "full"}),
    "dsa V2, none": ("dsa", {"runner": "V2"}),
}
COMPILED = ("generic", {"runner": "V1", "graphs": "full_and_piecewise", "compiled": True})


def compare_with_eager(forward) -> Counter:
    """Every later step of `forward` is run again without its graph, at the same padded size. Counts modes."""
    run, seen = forward.run, Counter()

    def run_twice(shape):
        hidden, mode = run(shape)
        got = hidden.clone()
        tokens, reqs = shape.num_tokens, shape.num_reqs
        if mode is not GraphMode.NONE:
            descriptor, _ = forward._dispatcher.dispatch(shape)
            # a PIECEWISE graph fits any number of requests
            tokens, reqs = descriptor.num_tokens, max(descriptor.num_reqs, shape.num_reqs)
        batch = forward._inputs.padded(tokens, reqs, max_length=shape.max_length)
        with torch.inference_mode():
            eager = forward._model.forward(batch, forward._caches)[: shape.num_tokens]
        assert torch.equal(got, eager), f"{mode} of {shape} differs from eager code"
        seen[mode] += 1
        seen["padded"] += tokens > shape.num_tokens
        return got, mode

    forward.run = run_twice
    return seen


def drive(engine, *, steps: int, seed: int) -> dict[int, list]:
    """Arrivals in bursts, answers of any length, an abort now and then."""
    rng = np.random.default_rng(seed)
    events: dict[int, list] = {}
    next_id = 0
    for _ in range(steps):
        for _ in range(int(rng.choice([0, 0, 0, 1, 1, 4]))):
            if len(engine._scheduler.waiting) < 4:
                prompt = rng.integers(3, VOCAB, size=int(rng.integers(1, 110))).tolist()
                engine.add(request(next_id, prompt, max_tokens=int(rng.integers(1, 60)), ignore_eos=True))
                next_id += 1
        if next_id and rng.random() < 0.02:
            engine.abort(int(rng.integers(max(0, next_id - 8), next_id)))
        for event in engine.step():
            events.setdefault(event.request_id, []).append(event)
    return events


def check(arm: tuple[str, dict], *, steps: int, seed: int) -> None:
    model, options = arm
    engine = make_engine(model, kv_pages=10, **options)
    modes = compare_with_eager(engine._runner._forward)
    events = drive(engine, steps=steps, seed=seed)
    counters = engine.counters()
    assert sum(modes[mode] for mode in GraphMode) > 0.8 * steps
    assert {mode.value: modes[mode] for mode in GraphMode} == counters.steps
    wanted = {"full": {GraphMode.FULL}, "piecewise": {GraphMode.PIECEWISE}, "none": set()}
    wanted["full_and_piecewise"] = wanted["full"] | wanted["piecewise"]
    for mode in wanted[options.get("graphs", "none")]:
        assert modes[mode] > 0.1 * steps, f"{mode} replayed {modes[mode]} times in {steps} steps"
    assert (modes["padded"] > 0) == (options.get("graphs", "none") != "none")
    assert counters.preemptions > 0
    assert counters.recompiles == 0
    ended = [e for e in events.values() if e[-1].finish_reason]
    assert {finish_of(e).name for e in ended} >= {"LENGTH", "ABORT"}


@pytest.mark.parametrize("arm", ARMS)
def test_replay_is_eager_bit_for_bit(arm):
    check(ARMS[arm], steps=STEPS, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("arm", ARMS)
def test_replay_is_eager_bit_for_bit_for_long(arm, seed):
    check(ARMS[arm], steps=5 * STEPS, seed=seed)


@pytest.mark.slow
@pytest.mark.no_poison
def test_replay_of_compiled_pieces_is_their_eager_run_bit_for_bit():
    check(COMPILED, steps=STEPS, seed=0)


def test_a_graph_that_computes_something_else_is_found():
    engine = make_engine("dsa", "V2", graphs="full_and_piecewise", kv_pages=10)
    forward = engine._runner._forward
    run = forward.run

    def wrong(shape):
        hidden, mode = run(shape)
        return hidden + (1e-6 if mode is GraphMode.FULL else 0.0), mode

    forward.run = wrong
    compare_with_eager(forward)
    with pytest.raises(AssertionError, match="differs from eager code"):
        drive(engine, steps=STEPS, seed=0)
