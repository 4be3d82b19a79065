"""Problems that go on longer than any template: their answers are right, and nothing held out is in them."""

from __future__ import annotations

import contextlib
import random
from decimal import Decimal
from itertools import pairwise

import pytest

from paths.models.train import compounds
from paths.models.train.compounds import KINDS, SCENES, compound
from paths.models.train.problems.draft import MAX_STEPS, OPERATIONS, Draft, Retry
from paths.models.train.problems.names import TEST_PEOPLE, TRAIN_PEOPLE
from paths.models.train.problems.split import held_out
from paths.models.train.problems.stream import TEMPLATES, TEST, problem

COUNT = 400


@pytest.fixture(scope="module")
def drawn():
    return [compound(random.Random(number)) for number in range(COUNT)]


def test_answers_follow_from_their_steps(drawn):
    assert drawn[:20] == [compound(random.Random(number)) for number in range(20)]
    assert len({one.question for one in drawn}) > 0.98 * COUNT
    for one in drawn:
        assert 1 <= len(one.steps) <= MAX_STEPS
        assert all(step.result == OPERATIONS[step.operator](step.left, step.right) for step in one.steps)
        assert one.answer.endswith(f"#### {one.value}") and Decimal(one.value) == one.steps[-1].result
        assert one.question.endswith("?") and one.question.count("?") == 1
    assert {len(one.steps) for one in drawn} == {1, 2, 3, 4}


def test_no_name_and_no_question_of_the_test_set(drawn):
    text = " ".join(one.question for one in drawn)
    assert not [person.name for person in TEST_PEOPLE if f"{person.name} " in text]
    asked = {problem(TEST, seed=3, index=number).question for number in range(COUNT)}
    assert not asked & {one.question for one in drawn}


def test_a_scene_never_goes_on_as_a_held_out_template_does(monkeypatch):
    """What follows a scene at once is seen; without the rule, held-out pairs appear."""
    met: list[str] = []

    def watched(name, scene):
        def told(draft):
            draft.scene = name
            return scene(draft)

        return told

    def following(name, follow):
        def go_on(draft, told):
            if (scene := getattr(draft, "scene", None)) is not None:
                met.append(f"{scene}.{name}")
                draft.scene = None
            return follow(draft, told)

        return go_on

    scenes = {
        family: {kind: watched(f"{family}.{kind}", scene) for kind, scene in kinds.items()}
        for family, kinds in SCENES.items()
    }
    monkeypatch.setattr(compounds, "SCENES", scenes)
    monkeypatch.setattr(
        compounds, "FOLLOWS", {name: following(name, one) for name, one in compounds.FOLLOWS.items()}
    )
    for number in range(COUNT):
        compound(random.Random(number))
    assert len(set(met)) > 40
    assert not [name for name in met if name in TEMPLATES and held_out("template", name)]
    monkeypatch.setattr(compounds, "held_out", lambda kind, name: False)
    for number in range(COUNT):
        compound(random.Random(number))
    assert [name for name in met if name in TEMPLATES and held_out("template", name)]


def drafts_of(kind):
    """Drafts of one kind that make sense."""
    for number in range(80):
        draft = Draft(random.Random(number), TRAIN_PEOPLE)
        try:
            kind(draft)
        except Retry:
            continue
        yield draft


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_makes_long_problems(kind):
    assert max(len(draft.steps) for draft in drafts_of(kind)) >= 3


def test_bills_relations_and_events_are_what_no_template_has(monkeypatch):
    """Two changes, four relations, an event twice in a row."""
    calls = []
    monkeypatch.setattr(
        compounds.shopping, "shopping", lambda draft, **told: calls.append(told["changes"]) or Decimal(1)
    )
    monkeypatch.setattr(
        compounds.comparisons, "compare", lambda draft, **told: calls.append(told["relations"]) or Decimal(1)
    )
    for kind in KINDS:
        if kind.__name__ in ("_bill", "_relations"):
            list(drafts_of(kind))
    assert {len(call) for call in calls} == {2, 4} and all("as_is" not in call for call in calls)
    chain = next(kind for kind in KINDS if kind.__name__ == "_chain")
    happened = []
    events = {
        name: (lambda draft, scene, name=name: happened.append(name), steps)
        for name, (_, steps) in compounds.chains.EVENTS.items()
    }
    monkeypatch.setattr(compounds.chains, "EVENTS", events)
    for number in range(40):
        happened.clear()
        with contextlib.suppress(Retry):
            chain(Draft(random.Random(number), TRAIN_PEOPLE))
        assert any(a == b for a, b in pairwise(happened)), happened
