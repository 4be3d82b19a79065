"""Drafts on real models: greedy answers are those without drafts, up to ties, whatever is drafted.

A verification multiplies other numbers of rows than a step without drafts, so float32 sums differ in their
last bits; where answers part, the decision was a tie.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from paths.api import UserError
from paths.engine.core import EngineCore
from paths.generic_mrv1.runner import RunnerV1
from tests.engine.mock import request, run_until_idle, tokens_of
from tests.runners.engines import VOCAB, make_engine, make_prompts, serve
from tests.runners.margins import MarginProbe

TIE = 1e-4
MOST_PARTINGS = 0.01
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "dsa V1": ("dsa", {"runner": "V1"}),
    "dsa V2": ("dsa", {"runner": "V2", "graphs": "full_and_piecewise"}),
    "generic V1": ("generic", {"runner": "V1", "graphs": "full"}),
    "generic V2": ("generic", {"runner": "V2"}),
}
QUICK = [
    name if name in ("dsa V2", "generic V1") else pytest.param(name, marks=pytest.mark.slow) for name in ARMS
]


def adversarial(engine: EngineCore, *, seed: int) -> None:
    """Every second draft that a step leaves behind becomes any token at all."""
    generator = torch.Generator().manual_seed(seed)
    drafter = engine._runner._drafter

    def then_any_token(propose: Callable[..., None]) -> Callable[..., None]:
        def any_token(*args: Any, **kwargs: Any) -> None:
            propose(*args, **kwargs)
            on_host = isinstance(engine._runner, RunnerV1)
            held = torch.from_numpy(drafter._batch.draft_ids) if on_host else drafter._states.draft_tokens
            changed = torch.rand(held.shape, generator=generator) < 0.5
            random = torch.randint(0, VOCAB, held.shape, generator=generator, dtype=held.dtype)
            held[changed] = random[changed]

        return any_token

    for name in ("propose", "propose_joined"):
        if hasattr(drafter, name):
            setattr(drafter, name, then_any_token(getattr(drafter, name)))


def compare(model: str, *, arms: list[str], mtps: tuple[int, ...], count: int, seed: int) -> None:
    prompts = dict(enumerate(make_prompts(count, seed=seed)))
    alone = make_engine(model, "V1")
    wanted = serve(alone, prompts, order=range(count), seed=0, max_tokens=24, most_at_once=1)
    probe = MarginProbe(alone)
    rng = np.random.default_rng(seed)
    for name in arms:
        for mtp in mtps:
            engine = make_engine(model, mtp=mtp, **ARMS[name][1])
            poison_caches(engine)
            if mtp != 2:
                adversarial(engine, seed=seed)
            order = rng.permutation(count).tolist()
            got = serve(engine, prompts, order=order, seed=mtp, max_tokens=24)
            parted = [i for i in prompts if got[i] != wanted[i]]
            for i in parted:
                at = next(n for n, (a, b) in enumerate(zip(got[i], wanted[i], strict=True)) if a != b)
                margin = probe.smallest([*prompts[i], *wanted[i][:at]])
                assert margin < TIE, f"{name}, mtp={mtp}: prompt {i} parts at {at}, margin {margin:.2e}"
            assert len(parted) <= MOST_PARTINGS * count, f"{name}, mtp={mtp}: {len(parted)} of {count} part"
            counters = engine.counters()
            assert counters.verify_steps > count
            assert counters.nan_logit_rows == 0
            assert engine.effective().mtp == mtp


@pytest.mark.parametrize("name", QUICK)
def test_greedy_answers_are_those_without_drafts(name):
    compare(ARMS[name][0], arms=[name], mtps=(3,), count=24, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("mtp", [1, 2, 3, 5])
@pytest.mark.parametrize("model", ["dsa", "generic"])
def test_greedy_answers_of_many_are_those_without_drafts(model, mtp):
    arms = [name for name, (of, _) in ARMS.items() if of == model]
    compare(model, arms=arms, mtps=(mtp,), count=200, seed=mtp)


@pytest.mark.parametrize("name", QUICK)
def test_nothing_parts_where_margins_are_wide(name):
    """No key is ranked, and prompts whose answer comes near a tie are left out: the others agree exactly."""
    model, arm = ARMS[name]
    prompts = dict(enumerate(make_prompts(16, seed=3)))
    alone = make_engine(model, "V1", index_topk=256)
    wanted: dict[int, list[int]] = {}
    for i, prompt in prompts.items():
        alone.add(request(i, prompt, max_tokens=16, ignore_eos=True, logprobs=2))
        events = run_until_idle(alone)[i]
        best = np.asarray([event.detail.logprobs[0].top_logprobs for event in events])
        if (best[:, 0] - best[:, 1]).min() > 10 * TIE:
            wanted[i] = tokens_of(events)
    assert len(wanted) > 8
    engine = make_engine(model, index_topk=256, mtp=3, **arm)
    poison_caches(engine)
    adversarial(engine, seed=1)
    got = serve(engine, prompts, order=range(16), seed=1, max_tokens=16)
    assert {i: got[i] for i in wanted} == wanted
    assert engine.counters().nan_logit_rows == 0


@pytest.mark.parametrize("name", ["dsa V2", pytest.param("generic V1", marks=pytest.mark.slow)])
def test_caches_are_as_if_rejected_drafts_had_never_been(name):
    """Keys of the model and of its MTP layer, against those of a fresh engine given the same tokens."""
    model, arm = ARMS[name]
    prompt = make_prompts(1, seed=5, low=60, high=61)[0]
    used = make_engine(model, mtp=3, **arm)
    poison_caches(used)
    adversarial(used, seed=1)
    used.add(request(1, prompt, max_tokens=60, ignore_eos=True))
    answer: list[int] = []
    while len(answer) < 30:
        answer += used.step().token_ids.tolist()
    assert used.counters().accepted_tokens < used.counters().drafted_tokens
    fresh = make_engine(model, mtp=3, max_num_batched_tokens=128, **arm)
    fresh.add(request(1, [*prompt, *answer], max_tokens=9, ignore_eos=True))
    fresh.step()
    for engine in (used, fresh):
        engine._runner._drafts.make()  # which a next step would begin with
    valid = len(prompt) + len(answer) - 1
    assert int(used._table.computed[used._table.live][0]) == valid
    for one, other in zip(keys(used, valid), keys(fresh, valid), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.no_poison
def test_compiled_pieces_draft_without_compiling_again():
    options = {"compiled": True, "graphs": "full_and_piecewise", "kv_pages": 40}
    prompts = dict(enumerate(make_prompts(20, seed=2)))
    wanted = serve(make_engine("generic", "V1"), prompts, order=range(20), seed=0, max_tokens=24)
    engine = make_engine("generic", "V1", mtp=3, **options)
    got = serve(engine, prompts, order=range(20), seed=1, max_tokens=24)
    assert sum(got[i] != wanted[i] for i in prompts) <= 1
    counters = engine.counters()
    assert counters.recompiles == 0
    assert counters.steps["NONE"] == 0


def test_same_seeds_draw_the_same_on_both_runners():
    prompts = dict(enumerate(make_prompts(8, seed=4)))
    answers = [
        serve(make_engine("dsa", runner, mtp=2), prompts, order=order, seed=2, max_tokens=12, temperature=1.0)
        for runner, order in (("V1", range(8)), ("V2", range(8)), ("V2", range(7, -1, -1)))
    ]
    same = [sum(a[i] == b[i] for i in prompts) for a in answers for b in answers]
    assert min(same) >= 7  # a tie between an acceptance and its chance is possible


def test_v2_steps_with_drafts_do_not_wait():
    effective = make_engine("dsa", "V2", graphs="full_and_piecewise", mtp=3).effective()
    assert (effective.waits_per_step, effective.copies_per_step) == (0.0, 2.0)
    assert effective.draft_modes["FULL"] > 0, "the warm-up decodes"


def test_v2_replays_a_step_of_greedy_requests_as_two_passes():
    """Beside the target's: verification and all drafts. Where one request draws, each draft is its own."""
    engine = make_engine("dsa", "V2", graphs="full_and_piecewise", mtp=3)
    verification, drafts = engine._runner._verification._forward, engine._runner._drafter._greedy.whole
    before = verification.counts.steps["FULL"], drafts.counts.steps["FULL"]
    steps = engine.counters().verify_steps
    serve(engine, dict(enumerate(make_prompts(3, seed=0))), order=range(3), seed=0, max_tokens=12)
    replays = verification.counts.steps["FULL"] - before[0]
    assert replays == drafts.counts.steps["FULL"] - before[1] > 0
    assert verification.counts.steps["NONE"] == drafts.counts.steps["NONE"] == 0
    assert replays <= engine.counters().verify_steps - steps
    engine.add(request(9, [3, 4, 5], max_tokens=12, ignore_eos=True, temperature=1.0))
    run_until_idle(engine)
    assert verification.counts.steps["FULL"] == before[0] + replays


def test_v1_replays_greedy_verification():
    """Where one request draws, or wants log-probs, the step judges its drafts without that pass."""
    engine = make_engine("dsa", "V1", graphs="full_and_piecewise", mtp=3)
    counts = engine._runner._verification._forward.counts
    serve(engine, dict(enumerate(make_prompts(3, seed=0))), order=range(3), seed=0, max_tokens=12)
    replays = counts.steps["FULL"]
    assert replays > 0
    assert counts.steps["NONE"] == 0
    for special in ({"temperature": 1.0}, {"logprobs": 1}):
        engine.add(request(9, [3, 4, 5], max_tokens=12, ignore_eos=True, **special))
        run_until_idle(engine)
    assert counts.steps["FULL"] == replays


def test_a_model_without_drafts_is_refused():
    with pytest.raises(UserError, match="mtp=2"):
        make_engine("dsa", "V2", mtp=2, num_nextn_predict_layers=0)


def test_a_forced_length_is_said():
    engine = make_engine("dsa", "V2", mtp=2, mtp_forced_al=1.5)
    assert (engine.effective().mtp, engine.effective().mtp_forced_al) == (2, 1.5)


def poison_caches(engine: EngineCore) -> None:
    """NaN everywhere, the null block too."""
    for cache in engine._runner._forward._caches:
        cache.kv.fill_(torch.nan)
        cache.index.fill_(torch.nan)


def keys(engine: EngineCore, count: int) -> list[torch.Tensor]:
    """The first `count` rows of the only request in every cache."""
    seen = np.arange(count)
    (slot,) = np.flatnonzero(engine._table.live)
    blocks = torch.from_numpy(engine._table.block_table[slot][seen // 64].astype(np.int64))
    caches = engine._runner._forward._caches
    return [t[blocks, torch.from_numpy(seen % 64)] for cache in caches for t in (cache.kv, cache.index)]
