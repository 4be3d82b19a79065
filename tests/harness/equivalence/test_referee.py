"""Arms of a plan, and what is asked of their engines."""

from __future__ import annotations

import re
import time
from dataclasses import replace

import numpy as np
import pytest

from harness.client.endpoint import EngineDied
from harness.equivalence.arms import find_arms
from harness.equivalence.asking import Asker, NotAnswered
from harness.equivalence.referee import Referee
from harness.plan import build_plan
from harness.preflight import Workloads, check_launches
from paths.api import UserError
from paths.scripted import ScriptedEngine
from tests.harness.cells import make_cells

FAST = ("path.options.first_ms=0", "path.options.gap_ms=0", "equivalence=true", "osl=5", "isl=3")


class InProcess:
    """An engine as an endpoint, without a process; counts how many requests run at once."""

    def __init__(self, engine, *, dies_after=None):
        self.engine, self.running, self.peak, self.asked = engine, set(), 0, []
        self.dies_after = dies_after

    def submit(self, requests):
        for request in requests:
            self.asked.append(request)
            self.running.add(request.request_id)
            self.engine.add(request)
        self.peak = max(self.peak, len(self.running))

    def poll(self, timeout_s):
        if self.dies_after is not None and len(self.asked) > self.dies_after:
            raise EngineDied("crash", "exit code 9")
        events = self.engine.step()
        self.running -= set(events.request_ids[events.finish != 0].tolist())
        return [(time.perf_counter_ns(), events)] if len(events) else []


def plan(*words, paths="scripted"):
    return build_plan(make_cells(f"+path={paths}", *FAST, *words))[0]


def referee(launches, prompts=3):
    arms = find_arms(launches, prompts)

    def source(arm):
        return Workloads(cells=arm.launch.cells).common_source(arm.cell)

    return Referee(arms=arms, prompts=prompts, source=source)


def judged(launches, prompts=3, **changes):
    """Every arm in the order of the plan, each on an engine of its own."""
    judge, found, endpoints = referee(launches, prompts), [], []
    for launch in launches:
        endpoints.append(InProcess(ScriptedEngine(launch.cells[0].engine), **changes))
        arm = judge.arms[launch.launch_id]
        found.append(judge.judge(endpoints[-1], arm, lambda *_: None).equivalence)
    return found, endpoints


def test_arms_are_engines_and_the_first_is_the_reference():
    launches = plan("mtp=0,3", "concurrency=1,4", "kv_dtype=auto,fp8")
    arms = list(find_arms(launches, 3).values())
    assert [arm.is_reference for arm in arms] == [True, False, False, False]
    assert [arm.differs_in for arm in arms] == [[], ["kv_dtype"], ["mtp"], ["mtp", "kv_dtype"]]
    assert {arm.concurrencies for arm in arms} == {(1, 4)}
    assert arms[2].name == "scripted tiny_v32 kv=auto mtp=3 3/5"


def test_paths_differ_in_the_path_and_not_in_options_that_each_has_of_its_own():
    arms = list(find_arms(plan_of_paths(), 3).values())
    assert [arm.differs_in for arm in arms] == [[], ["path"]]


def plan_of_paths():
    return build_plan(make_cells("+path=generic_mrv1,dsa_mrv2", "equivalence=true"))[0]


def test_models_and_lengths_are_groups_of_their_own():
    arms = list(find_arms(plan("mtp=0,1", "model=tiny_v32,tiny_glm"), 3).values())
    assert [arm.is_reference for arm in arms].count(True) == 2
    assert all(arm.cell.engine.model == arm.reference.cells[0].engine.model for arm in arms)


def test_rounds_are_asked_once():
    cells = make_cells("+path=scripted", *FAST, "mtp=0,1")
    launches, _ = build_plan(cells, rounds=3)
    assert list(find_arms(launches, 3)) == ["L000", "L001"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "equivalence=true: no two arms answer the same prompts; sweep path, mtp, kv_dtype"),
        (["concurrency=1,4"], "equivalence=true: no two arms answer the same prompts"),
        (["model=tiny_v32,tiny_glm"], "equivalence=true: no two arms answer the same prompts"),
        (["mtp=1,2", "mtp_mode=forced", "mtp_forced_al=1.5"], "equivalence=true: mtp_mode=forced accepts"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_refused_before_any_work(words, said):
    with pytest.raises(UserError, match=f"^{re.escape(said)}"):
        check_launches(plan(*words), [])


@pytest.mark.parametrize("word", ["equivalence=1", "equivalence_prompts=0", "equivalence_prompts=1.5"])
def test_values_that_mean_nothing(word):
    with pytest.raises(UserError, match="not allowed; allowed: "):
        make_cells("+path=scripted", word)


@pytest.mark.parametrize("word", ["equivalence=true,false", "equivalence_prompts=1,2"])
def test_one_value_per_run(word):
    with pytest.raises(UserError, match="has one value per run"):
        make_cells("+path=scripted", word)


def test_nobody_is_asked_unless_the_user_asks():
    launches, _ = build_plan(make_cells("+path=scripted", "mtp=0,1"))
    assert check_launches(launches, []).arms == {}


def test_the_same_arm_against_itself_is_the_reference_level():
    (itself, other), endpoints = judged(plan("mtp=0,3", "concurrency=1,4"))
    assert (itself.against, other.against) == ("itself", "reference")
    assert other.reference == itself.arm
    for equivalence in (itself, other):
        assert [level.concurrency for level in equivalence.levels] == [1, 4]
        for level in equivalence.levels:
            assert level.greedy.identical == level.greedy.prompts == 3
            assert level.forced.max_kl == 0 and level.forced.positions == 15
    asked = [{request.prompt_ids.tobytes() for request in endpoint.asked} for endpoint in endpoints]
    assert asked[0] == asked[1] and len(asked[0]) == 4  # three prompts, and one that fills the load
    assert [endpoint.peak for endpoint in endpoints] == [4, 4]
    assert len(endpoints[0].asked) == 2 * len(endpoints[1].asked)


def test_another_answer_shows_in_both_ways():
    (_, other), _ = judged(plan("path.options.other_token_every=0,3"))
    (level,) = other.levels
    assert other.differs_in == ["path.options"]
    assert level.greedy.first_div == [2, 2, 2] and level.greedy.identical == 0
    assert level.greedy.margin_max == pytest.approx(np.log(2), rel=1e-3) and level.greedy.near_ties == 0
    assert level.forced.top1_agree == pytest.approx(4 / 5)


def test_other_log_probs_show_where_answers_do_not():
    (itself, other), _ = judged(plan("path.options.sharpness=1.0,2.0"))
    assert other.levels[0].greedy.identical == 3
    assert itself.levels[0].forced.mean_kl == 0
    assert other.levels[0].forced.mean_kl > 0.1 and other.levels[0].forced.mean_abs_dlogprob > 0.1


def test_an_arm_that_fails_has_a_reason_and_takes_nothing_with_it():
    (_, other), _ = judged(plan("path.options.fail_every=0,2"))
    assert other.levels == [] and other.reason == "the engine refused a request: scripted failure"


def test_without_a_reference_the_others_say_so():
    (itself, other), _ = judged(plan("path.options.fail_every=2,0"))
    assert "scripted failure" in itself.reason
    assert other.reason.startswith("the reference has no answers: the engine refused")


def test_a_dead_engine_is_said_and_handed_on():
    launches = plan("mtp=0,1")
    judge = referee(launches)
    arm = judge.arms["L000"]
    endpoint = InProcess(ScriptedEngine(launches[0].cells[0].engine), dies_after=2)
    result = judge.judge(endpoint, arm, lambda *_: None)
    assert result.died is not None and result.equivalence.reason == "the engine died: exit code 9"
    late = judge.judge(
        InProcess(ScriptedEngine(launches[1].cells[0].engine)), judge.arms["L001"], lambda *_: None
    )
    assert "the engine died" in late.equivalence.reason


def test_a_reference_that_was_never_asked_is_said():
    launches = plan("mtp=0,1")
    judge = referee(launches)
    endpoint = InProcess(ScriptedEngine(launches[1].cells[0].engine))
    result = judge.judge(endpoint, judge.arms["L001"], lambda *_: None)
    assert result.equivalence.reason == "the reference has no answers: it was not asked"


def test_an_engine_that_scores_too_little_has_no_scores():
    class Silent(InProcess):
        def poll(self, timeout_s):
            arrived = super().poll(timeout_s)
            for _, events in arrived:
                events.details.clear()
            return arrived

    launches = plan("mtp=0,1")
    judge = referee(launches)
    endpoint = Silent(ScriptedEngine(launches[0].cells[0].engine))
    (level,) = judge.judge(endpoint, judge.arms["L000"], lambda *_: None).equivalence.levels
    assert level.forced is None and level.reason == "the engine did not score every given token"


def test_an_engine_that_scores_differing_numbers_of_alternatives_has_no_scores():
    class Ragged(InProcess):
        cut = False

        def poll(self, timeout_s):
            arrived = super().poll(timeout_s)
            for _, events in arrived:
                for row, detail in events.details.items():
                    if detail.logprobs is not None and not self.cut:
                        self.cut = True
                        first, *rest = detail.logprobs
                        few = replace(first, top_ids=first.top_ids[:1], top_logprobs=first.top_logprobs[:1])
                        events.details[row] = replace(detail, logprobs=(few, *rest))
            return arrived

    launches = plan("mtp=0,1")
    judge = referee(launches)
    endpoint = Ragged(ScriptedEngine(launches[0].cells[0].engine))
    (level,) = judge.judge(endpoint, judge.arms["L000"], lambda *_: None).equivalence.levels
    assert level.forced is None
    assert level.reason.startswith("the engine gave differing numbers of alternatives: [1,")


def test_a_small_data_set_is_asked_once_each(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt_ids": [5, 6], "max_tokens": 4}\n{"prompt_ids": [7], "max_tokens": 2}\n')
    (itself, other), _ = judged(plan("mtp=0,1", "workload=dataset", f"workload.file={file}"), prompts=16)
    assert itself.levels[0].greedy.prompts == other.levels[0].greedy.prompts == 2
    assert other.levels[0].forced.positions == 6


def test_an_empty_answer_of_the_reference_is_not_scored():
    asker = Asker(endpoint=None, prompts=[None], others=[], exact_lengths=True)
    with pytest.raises(NotAnswered, match="nothing to score"):
        asker._forced([np.empty(0, np.int32)])
