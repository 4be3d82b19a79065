"""Somebody's things after one event and another: a template is a sequence of events and a question."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import pairwise, product

from paths.models.train.problems.draft import MAX_STEPS, Draft, Template
from paths.models.train.problems.names import Person
from paths.models.train.problems.things import THINGS, Thing


@dataclass
class Scene:
    """Who has how many of what."""

    who: Person
    thing: Thing
    now: Decimal


Event = Callable[[Draft, Scene], None]


def _has(draft: Draft, scene: Scene) -> None:
    scene.now = draft.amount() + (0 if draft.chance(0.5) else draft.part())
    n, many, who = draft.show(scene.now), scene.thing.many, scene.who
    draft.say(
        f"{who} has {n} {many}.",
        f"{who} starts the week with {n} {many}.",
        f"{who} collected {n} {many}.",
        f"There are {n} {many} on the table of {who}.",
    )


def _has_packs(draft: Draft, scene: Scene) -> None:
    k, m = draft.few(), draft.group()
    many, packs, who = scene.thing.many, scene.thing.packs, scene.who
    draft.say(
        f"{who} has {draft.show(k)} {packs} of {draft.show(m)} {many}.",
        f"{who} owns {draft.show(k)} {packs} with {draft.show(m)} {many} in each.",
        f"{who} fills {draft.show(k)} {packs} with {draft.show(m)} {many} each.",
    )
    scene.now = draft.step(f"{who.She} starts with {{}} {many}.", k, "*", m)


def _gain(draft: Draft, scene: Scene) -> None:
    n, who, many = draft.part(), scene.who, scene.thing.many
    shown = draft.show(n)
    draft.say(
        f"{who.She} buys {shown} more.",
        f"Then {who.she} finds {shown} more {many}.",
        f"{who.She} gets {shown} more from {draft.friend()}.",
        f"Later {who.she} is given {shown} {many}.",
        f"{who} adds {shown} {many}.",
    )
    scene.now = draft.step(f"Then {who.she} has {{}} {many}.", scene.now, "+", n)


def _loss(draft: Draft, scene: Scene) -> None:
    n, who, many = draft.part(), scene.who, scene.thing.many
    shown = draft.show(n)
    draft.say(
        f"{who.She} gives {shown} to {draft.friend()}.",
        f"Then {who.she} loses {shown} of them.",
        f"{who.She} sells {shown} {many}.",
        f"{who} uses {shown} of the {many}.",
        f"After that, {shown} {many} are thrown away.",
    )
    scene.now = draft.step(f"Then {who.she} has {{}} {many} left.", scene.now, "-", n)


def _gain_packs(draft: Draft, scene: Scene) -> None:
    k, m, who = draft.few(), draft.group(), scene.who
    many, packs = scene.thing.many, scene.thing.packs
    draft.say(
        f"{who.She} buys {draft.show(k)} {packs} of {draft.show(m)} {many}.",
        f"Then {who.she} gets {draft.show(k)} {packs} with {draft.show(m)} {many} each.",
        f"Each of {draft.show(k)} friends gives {who} {draft.show(m)} more.",
        f"On each of the next {draft.show(k)} days {who.she} gets {draft.show(m)} more.",
    )
    more = draft.step(f"{who.She} gets {{}} more {many}.", k, "*", m)
    scene.now = draft.step(f"Then {who.she} has {{}} {many}.", scene.now, "+", more)


def _loss_packs(draft: Draft, scene: Scene) -> None:
    k, m, who = draft.few(), draft.few(12), scene.who
    many, packs = scene.thing.many, scene.thing.packs
    draft.say(
        f"{who.She} gives {draft.show(m)} {many} to each of {draft.show(k)} friends.",
        f"Then {who.she} sells {draft.show(k)} {packs} of {draft.show(m)} {many}.",
        f"{who} uses {draft.show(m)} {many} on each of {draft.show(k)} days.",
    )
    away = draft.step(f"{who.She} gives up {{}} {many}.", k, "*", m)
    scene.now = draft.step(f"Then {who.she} has {{}} {many} left.", scene.now, "-", away)


def _half(draft: Draft, scene: Scene) -> None:
    who, many = scene.who, scene.thing.many
    draft.say(
        f"{who.She} gives half of them to {draft.friend()}.",
        f"Then {who.she} sells half of the {many}.",
        f"Half of the {many} get lost.",
        f"{who} uses half of {who.her} {many}.",
    )
    scene.now = draft.whole(draft.step(f"Then {who.she} has {{}} {many} left.", scene.now, "/", 2))


def _times(draft: Draft, scene: Scene) -> None:
    who, many = scene.who, scene.thing.many
    word, factor = draft.pick((("doubles", 2), ("doubles", 2), ("triples", 3)))
    draft.say(
        f"Then {who.she} {word} {who.her} {many}.",
        f"In the next month {who} {word} the number of {many}.",
        f"A gift {word} {who.her} {many}.",
    )
    scene.now = draft.step(f"Then {who.she} has {{}} {many}.", scene.now, "*", factor)


def _how_many(draft: Draft, scene: Scene) -> None:
    who, many = scene.who, scene.thing.many
    draft.say(
        f"How many {many} does {who} have now?",
        f"How many {many} does {who.she} have in the end?",
        f"What is the number of {many} that {who} has now?",
    )


def _share(draft: Draft, scene: Scene) -> None:
    k, who, many = draft.few(), scene.who, scene.thing.many
    draft.say(
        f"{who.She} shares the {many} equally among {draft.show(k)} friends. How many does each friend get?",
        f"If {who} divides them equally among {draft.show(k)} children, how many {many} does each child get?",
        f"How many {many} are in each pile if {who.she} makes {draft.show(k)} equal piles?",
    )
    scene.now = draft.whole(draft.step(f"Each gets {{}} {many}.", scene.now, "/", k))


def _pack(draft: Draft, scene: Scene) -> None:
    k, who, many, packs = draft.few(), scene.who, scene.thing.many, scene.thing.packs
    draft.say(
        f"{who.She} puts {draft.show(k)} {many} into each bag. How many bags does {who.she} need?",
        f"How many {packs} of {draft.show(k)} {many} can {who.she} fill?",
        f"If {draft.show(k)} {many} fit on a shelf, how many shelves does {who} fill?",
    )
    scene.now = draft.whole(draft.step(f"{who.She} fills {{}}.", scene.now, "/", k))


def _sell(draft: Draft, scene: Scene) -> None:
    p, who, many = draft.low_price(), scene.who, scene.thing.many
    draft.say(
        f"{who.She} sells all of them for {draft.money(p)} each. How much money does {who.she} get?",
        f"If each is worth {draft.money(p)}, how much are the {many} worth in dollars?",
        f"How many dollars does {who} earn if {who.she} sells the {many} for {draft.money(p)} each?",
    )
    scene.now = draft.step("They bring {} dollars.", scene.now, "*", p)


def _goal(draft: Draft, scene: Scene) -> None:
    goal, who, many = scene.now + draft.part(), scene.who, scene.thing.many
    draft.say(
        f"{who.She} wants {draft.show(goal)} {many}. How many more does {who.she} need?",
        f"How many {many} are missing if {who} wants to have {draft.show(goal)}?",
        f"How many more {many} must {who} get to reach {draft.show(goal)}?",
    )
    scene.now = draft.step(f"{who.She} needs {{}} more {many}.", goal, "-", scene.now)


# each with the number of steps that it adds
STARTS: dict[str, tuple[Event, int]] = {"has": (_has, 0), "packs": (_has_packs, 1)}
EVENTS: dict[str, tuple[Event, int]] = {
    "gain": (_gain, 1),
    "loss": (_loss, 1),
    "gain_packs": (_gain_packs, 2),
    "loss_packs": (_loss_packs, 2),
    "half": (_half, 1),
    "times": (_times, 1),
}
QUESTIONS: dict[str, tuple[Event, int]] = {
    "left": (_how_many, 0),
    "share": (_share, 1),
    "pack": (_pack, 1),
    "sell": (_sell, 1),
    "goal": (_goal, 1),
}


def _chain(draft: Draft, *, events: tuple[Event, ...]) -> Decimal:
    scene = Scene(draft.person(), draft.pick(THINGS), Decimal(0))
    for event in events:
        event(draft, scene)
    return scene.now


def _templates() -> dict[str, Template]:
    found: dict[str, Template] = {}
    kinds = EVENTS | STARTS | QUESTIONS
    for length in range(4):
        for start, *body, question in product(STARTS, *[EVENTS] * length, QUESTIONS):
            names = (start, *body, question)
            steps = sum(kinds[name][1] for name in names)
            repeated = any(a == b for a, b in pairwise(body))
            if 1 <= steps <= MAX_STEPS and not repeated:
                events = tuple(kinds[name][0] for name in names)
                found[f"chain.{'_then_'.join(names)}"] = partial(_chain, events=events)
    return found


TEMPLATES = _templates()
