"""One request alone is planned and judged in numbers: what the arrays say of many must come out."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paths.api import FinishReason, Request, SamplingParams
from paths.engine.kv_cache import BlockPool
from paths.engine.requests import RequestState, RequestTable
from paths.engine.scheduler import Scheduler, StepPlan
from paths.engine.stopping import StopRules

EOS = (3, 7)


def scheduler_of(*, mtp: int, budget: int, pages: int, prompt: int, most: int) -> Scheduler:
    table = RequestTable(max_num_seqs=3, max_model_len=400, seed=0)
    scheduler = Scheduler(table=table, pool=BlockPool(pages), max_num_batched_tokens=budget, mtp=mtp)
    ids = np.arange(prompt, dtype=np.int32)
    request = Request(request_id=5, prompt_ids=ids, params=SamplingParams(max_tokens=most))
    scheduler.waiting.append(RequestState(request=request, arrival=0))
    return scheduler


def step(scheduler: Scheduler, accepted: int) -> StepPlan | None:
    """Plan a step, and count it as `EngineCore` does: at most `accepted` drafts are right."""
    table, plan = scheduler.table, scheduler.plan()
    if plan is None or len(plan.slots) == 0:
        return plan
    table.computed[plan.slots] += plan.num_tokens
    for slot, drafted in zip(
        plan.slots[: plan.num_samples].tolist(), (plan.num_logits - 1).tolist(), strict=True
    ):
        right = min(drafted, accepted)
        table.num_drafts[slot] = scheduler.mtp
        table.total_len[slot] += 1 + right
        table.computed[slot] -= drafted - right
        if table.total_len[slot] >= table.max_total[slot]:
            scheduler.finish(slot)
    return plan


def same(plan: StepPlan | None, other: StepPlan | None) -> bool:
    if plan is None or other is None:
        return plan is other
    pairs = zip(dataclasses.astuple(plan), dataclasses.astuple(other), strict=True)
    return all(np.array_equal(a, b) and getattr(a, "dtype", 0) == getattr(b, "dtype", 0) for a, b in pairs)


@settings(max_examples=60, deadline=None)
@given(
    mtp=st.integers(0, 4),
    budget=st.sampled_from([1, 2, 5, 64, 256]),
    prompt=st.sampled_from([1, 2, 63, 64, 65, 100, 111]),
    most=st.integers(1, 40),
    accepted=st.lists(st.integers(0, 4), min_size=1, max_size=5),
)
def test_a_life_alone_is_planned_as_among_others(mtp, budget, prompt, most, accepted):
    settings_of = {"mtp": mtp, "budget": budget, "pages": 4, "prompt": prompt, "most": most}
    alone, general = scheduler_of(**settings_of), scheduler_of(**settings_of)
    general._alone = lambda: None
    steps = 0
    while alone.has_work():
        right = accepted[steps % len(accepted)]
        assert same(step(alone, right), step(general, right))
        assert np.array_equal(alone.table.block_table, general.table.block_table)
        steps += 1
        assert steps < 1000
    assert not general.has_work()
    assert alone.pool.free == general.pool.free == 3


def test_alone_is_what_runs():
    scheduler = scheduler_of(mtp=3, budget=64, pages=4, prompt=10, most=20)
    step(scheduler, 0)  # the prompt: nobody runs yet
    scheduler._running = lambda **_: pytest.fail("planned as one of many")
    assert [step(scheduler, 1).total_tokens for _ in range(3)] == [4, 4, 4]


@settings(max_examples=200, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    most=st.integers(1, 8),
    least=st.integers(0, 6),
    ignore_eos=st.booleans(),
    before=st.integers(0, 6),
)
def test_the_end_of_one_is_that_among_others(tokens, most, least, ignore_eos, before):
    table = RequestTable(max_num_seqs=2, max_model_len=64, seed=0)
    params = SamplingParams(max_tokens=most, min_tokens=min(least, most), ignore_eos=ignore_eos)
    request = Request(request_id=1, prompt_ids=np.arange(4, dtype=np.int32), params=params)
    slot = table.admit(RequestState(request=request, arrival=0))
    rules, known = StopRules(table, EOS), 4 + before
    totals = known + 1 + np.arange(len(tokens), dtype=np.int32)
    slots = np.full(len(tokens), slot, dtype=np.int32)
    finish, _ = rules.judge(slots, np.asarray(tokens, dtype=np.int32), totals, {})
    ends = np.flatnonzero(finish)
    kept = int(ends[0]) + 1 if len(ends) else len(tokens)
    wanted = FinishReason(int(finish[ends[0]])) if len(ends) else FinishReason.NONE
    assert rules.judge_plain(slot, tokens, known) == (kept, wanted)
