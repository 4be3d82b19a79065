"""What may happen to a quantity after a scene has told how it comes about, and the question about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import product

from paths.models.train.problems.draft import Draft, Retry, Template


@dataclass(frozen=True)
class Told:
    """A quantity with its unit (plural), and wordings of the question for it."""

    value: Decimal
    unit: str
    asks: tuple[str, ...]


Scene = Callable[[Draft], Told]


def _amount(draft: Draft, told: Told, n: Decimal) -> str:
    return draft.money(n) if told.unit == "dollars" else f"{draft.show(n)} {told.unit}"


def _plus(draft: Draft, told: Told) -> Decimal:
    n, unit = draft.part(), told.unit
    draft.say(
        f"Then {_amount(draft, told, n)} are added. How many {unit} is that in total?",
        f"To this come another {_amount(draft, told, n)}. How many {unit} are there now?",
    )
    return draft.step(f"With the new ones it is {{}} {unit}.", told.value, "+", n)


def _minus(draft: Draft, told: Told) -> Decimal:
    n, unit = draft.part(), told.unit
    draft.say(
        f"Then {_amount(draft, told, n)} of that are taken away. How many {unit} are left?",
        f"Later {_amount(draft, told, n)} of these are lost. How many {unit} remain?",
    )
    return draft.step(f"There are {{}} {unit} left.", told.value, "-", n)


def _times(draft: Draft, told: Told) -> Decimal:
    k, unit = draft.between(2, 5), told.unit
    draft.say(
        f"The same happens {draft.show(k)} times. How many {unit} is that in total?",
        f"This is repeated on {draft.show(k)} days. How many {unit} is that in all?",
    )
    return draft.step(f"In all it is {{}} {unit}.", told.value, "*", k)


def _split(draft: Draft, told: Told) -> Decimal:
    k, unit = draft.between(2, 6), told.unit
    draft.say(
        f"That is divided equally among {draft.show(k)} people. How many {unit} is that for each?",
        f"If {draft.show(k)} groups share that equally, how many {unit} does each group get?",
    )
    value = draft.step(f"Each gets {{}} {unit}.", told.value, "/", k)
    return value if unit == "dollars" or told.value != told.value.to_integral_value() else draft.whole(value)


def _ask(draft: Draft, told: Told) -> Decimal:
    if not draft.steps:
        raise Retry
    draft.say(*told.asks)
    return told.value


FOLLOWS = {"ask": _ask, "plus": _plus, "minus": _minus, "times": _times, "split": _split}


def _followed(draft: Draft, *, scene: Scene, follow: Callable[[Draft, Told], Decimal]) -> Decimal:
    return follow(draft, scene(draft))


def followed(family: str, scenes: dict[str, Scene], follows: str) -> dict[str, Template]:
    """One template for each scene and each of the ways to go on that make sense with them."""
    return {
        f"{family}.{kind}.{name}": partial(_followed, scene=scene, follow=FOLLOWS[name])
        for (kind, scene), name in product(scenes.items(), follows.split())
    }
