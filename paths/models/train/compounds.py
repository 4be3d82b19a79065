"""Problems for training only that go on as no template does, so that a model reads what comes next.

A model that has met every scene with three of the four ways in which it can go on takes the fourth for one of
the three. Here a scene goes on twice, things of any kind go on up to three times, an event happens twice in a
row, a bill changes twice. No template of the test set occurs: where a scene and a way to go on are held out
together, the one never follows the other directly (rates go on in other words than theirs). The generator and
its distribution stay as they are.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal

from paths.models.train.problems import (
    chains,
    comparisons,
    distractors,
    measures,
    portions,
    rates,
    shopping,
)
from paths.models.train.problems.draft import Draft, Retry
from paths.models.train.problems.follow import FOLLOWS, Scene, Told
from paths.models.train.problems.names import TRAIN_PEOPLE
from paths.models.train.problems.split import held_out
from paths.models.train.problems.stream import TEMPLATES, Problem
from paths.models.train.problems.things import GOODS, THINGS

SCENES: dict[str, dict[str, Scene]] = {
    "share": portions.SHARES,
    "price": portions.PRICES,
    "leftover": portions.LEFTOVERS,
    "recipe": portions.RECIPES,
    "rows": portions.ROWS,
    "time": measures.CLOCK,
    "measure": measures.MEASURES,
    "trip": measures.TRIPS,
    "saving": measures.SAVINGS,
    "profit": shopping.PROFITS,
}
GOING_ON = ("plus", "minus", "times")  # of which something is left to go on with
UNITS = (
    "minutes",
    "miles",
    "meters",
    "liters",
    "pounds",
    "feet",
    "dollars",
    "laps",
    "trees",
    "seats",
    "rooms",
)


def compound(rng: random.Random) -> Problem:
    """A problem of up to four steps."""
    while True:
        try:
            return _write(Draft(rng, TRAIN_PEOPLE))
        except Retry:
            continue


def _write(draft: Draft) -> Problem:
    value = draft.rng.choices(list(KINDS), list(KINDS.values()))[0](draft)
    distracted = draft.chance(distractors.SHARE)
    if distracted:
        distractors.distract(draft, draft.somebody())
    shown = draft.show(value)
    return Problem(
        template="compound",
        question=" ".join(sentence[0].upper() + sentence[1:] for sentence in draft.sentences),
        answer="\n".join([*(step.text for step in draft.steps), f"#### {shown}"]),
        value=shown,
        steps=tuple(draft.steps),
        distracted=distracted,
        scale=draft.scale,
    )


def _scene(draft: Draft) -> Decimal:
    """A scene that goes on twice."""
    family = draft.pick(tuple(SCENES))
    kind = draft.pick(tuple(SCENES[family]))
    names = {one: f"{family}.{kind}.{one}" for one in GOING_ON}
    meets = [one for one, name in names.items() if not (name in TEMPLATES and held_out("template", name))]
    if not meets:
        raise Retry
    first = draft.pick(meets)
    told = _go_on(draft, SCENES[family][kind](draft), first)
    return FOLLOWS[draft.pick(tuple(one for one in FOLLOWS if one not in ("ask", first)))](draft, told)


def _stock(draft: Draft) -> Decimal:
    """So many things, which go on one to three times."""
    unit = draft.pick(UNITS) if draft.chance(0.4) else _things(draft)
    value = draft.amount()
    amount = draft.money(value) if unit == "dollars" else f"{draft.show(value)} {unit}"
    draft.say(f"There are {amount}.", f"At first there were {amount}.", f"{draft.person()} has {amount}.")
    told, last = Told(value, unit, ()), ""
    for _ in range(draft.pick((0, 1, 1, 2))):
        last = draft.pick(tuple(one for one in GOING_ON if one != last))
        told = _go_on(draft, told, last)
    return FOLLOWS[draft.pick(tuple(one for one in FOLLOWS if one not in ("ask", last)))](draft, told)


def _things(draft: Draft) -> str:
    return str(draft.pick(GOODS)) if draft.chance(0.3) else draft.pick(THINGS).many


def _go_on(draft: Draft, told: Told, name: str) -> Told:
    """What the follow makes of the quantity, without its question."""
    follow: Callable[[Draft, Told], Decimal] = FOLLOWS[name]
    value = follow(draft, told)
    statement, asked, _ = draft.sentences[-1].partition(". ")
    assert asked, "a follow tells what happens, and then asks"
    draft.sentences[-1] = f"{statement}."
    return Told(value, told.unit, told.asks)


def _chain(draft: Draft) -> Decimal:
    """Events of which one happens twice in a row, which no template has."""
    scene = chains.Scene(draft.person(), draft.pick(THINGS), Decimal(0))
    twice = draft.pick(tuple(chains.EVENTS))
    events = [twice, twice]
    for _ in range(draft.pick((0, 1, 1))):
        events.insert(draft.pick((0, len(events))), draft.pick(tuple(chains.EVENTS)))
    names = [draft.pick(("has", "has", "packs")), *events, draft.pick(tuple(chains.QUESTIONS))]
    kinds = chains.STARTS | chains.EVENTS | chains.QUESTIONS
    for name in names:
        kinds[name][0](draft, scene)
    return scene.now


def _relations(draft: Draft) -> Decimal:
    """One person more than any template has."""
    relations = tuple(draft.pick(tuple(comparisons.RELATIONS)) for _ in range(4))
    return comparisons.compare(draft, relations=relations, question="last")


def _bill(draft: Draft) -> Decimal:
    """A bill that changes twice."""
    return shopping.shopping(
        draft,
        basket=draft.pick(("one", "one_two", "lines")),
        changes=tuple(draft.rng.sample([one for one in shopping.CHANGES if one != "as_is"], 2)),
        asked=draft.pick(tuple(shopping.ASKED)),
    )


def _work(draft: Draft) -> Decimal:
    """A rate that goes on once or twice before the question."""
    who, activity = draft.person(), draft.pick(rates.ACTIVITIES)
    total = rates.leg(draft, str(who), activity)
    told = Told(total, activity.what, ())
    for name in draft.rng.sample(GOING_ON, draft.pick((1, 2))):
        told = _go_on(draft, told, name)
    if draft.chance(0.5):
        return rates.twice(draft, told.value, activity.what)
    return FOLLOWS[draft.pick(("plus", "minus", "split"))](draft, told)


KINDS = {_stock: 20, _scene: 40, _chain: 14, _relations: 10, _bill: 10, _work: 6}
