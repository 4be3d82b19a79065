"""A problem while it is being written: draws of quantities, sentences, and steps that compute themselves."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TypeVar

from paths.models.train.problems.names import Person

T = TypeVar("T")
LARGEST = 9999  # no quantity has more than four digits
MAX_STEPS = 4
# how large the quantities of one problem are, and how often
SCALES = {"small": 42, "medium": 44, "large": 10, "huge": 4}


class Retry(Exception):
    """These draws make no sensible problem (a share that does not divide, a debt): draw again."""


@dataclass(frozen=True)
class Step:
    """One line of an answer."""

    text: str
    left: Decimal
    operator: str
    right: Decimal
    result: Decimal


class Draft:
    """Templates draw through it, `say` the question's sentences and `step` through the solution.

    Values are exact: whole numbers and Decimal. `cents` makes broken values read as money (7.50).
    """

    def __init__(self, rng: random.Random, people: Sequence[Person]) -> None:
        self.rng = rng
        self.sentences: list[str] = []
        self.steps: list[Step] = []
        self.cents = False
        self.scale = rng.choices(list(SCALES), list(SCALES.values()))[0]
        self._people = list(people)
        self._used: list[Person] = []

    # -- draws

    def pick(self, options: Sequence[T]) -> T:
        return self.rng.choice(options)

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def person(self) -> Person:
        """Someone who is not in the problem yet."""
        while (person := self.rng.choice(self._people)) in self._used:
            pass
        self._used.append(person)
        return person

    def somebody(self) -> str:
        """Whoever is in the problem first."""
        return str(self._used[0] if self._used else self.person())

    def between(self, low: int, high: int) -> Decimal:
        return Decimal(self.rng.randint(low, high))

    def amount(self) -> Decimal:
        """A quantity to add and subtract, of the problem's scale."""
        if self.scale == "small":
            return self.between(3, 20)
        if self.scale == "medium":
            return self.between(8, 99)
        if self.scale == "large":
            return self.between(100, 199) if self.chance(0.75) else self.between(200, 999)
        return self.between(100, 450) * 10

    def part(self) -> Decimal:
        """A quantity that is usually smaller than `amount`."""
        if self.scale == "small":
            return self.between(2, 9)
        if self.scale == "medium":
            return self.between(3, 45)
        return self.between(10, 99) if self.scale == "large" else self.between(10, 90) * 10

    def few(self, high: int = 9) -> Decimal:
        """How many groups, days or friends: a small factor."""
        return self.between(2, high)

    def group(self) -> Decimal:
        """The size of one group: the larger factor of a product."""
        if self.scale == "small":
            return self.between(2, 12)
        if self.scale == "medium":
            return self.between(3, 25)
        return self.between(2, 12) * (5 if self.scale == "large" else 50)

    def price(self) -> Decimal:
        """Dollars, mostly whole; cents are multiples of 25, now and then of 5."""
        draw = self.rng.random()
        if draw < 0.72:
            return self.between(2, 12) if self.scale == "small" else self.between(2, 30)
        if draw < 0.96:
            return self.between(2, 24) * Decimal("0.25")
        return self.between(5, 40) * Decimal("0.05")

    def low_price(self) -> Decimal:
        """A price that large numbers of things are multiplied with."""
        return self.between(2, 9) if self.chance(0.85) else self.between(1, 9) * Decimal("0.50")

    def friend(self) -> str:
        """Somebody else by name or by relation."""
        if self.chance(0.6):
            return str(self.person())
        return self.pick(("a friend", "a neighbor", "a cousin", "a classmate"))

    # -- text

    def show(self, value: Decimal) -> str:
        """Whole without a point, money with two decimals, other values without trailing zeros."""
        if value == value.to_integral_value():
            return str(int(value))
        return f"{value:.2f}" if self.cents else format(value.normalize(), "f")

    def money(self, value: Decimal) -> str:
        """With the sign, and the cents as money."""
        self.cents = True
        return f"${self.show(value)}"

    def say(self, *wordings: str) -> None:
        """One of these wordings becomes the question's next sentence."""
        self.sentences.append(self.pick(wordings))

    def step(self, text: str, left: Decimal | int, operator: str, right: Decimal | int) -> Decimal:
        """Compute; `{}` in the text becomes the equation. Raises Retry if nobody would ask that."""
        left, right = Decimal(left), Decimal(right)
        result = OPERATIONS[operator](left, right)
        shown = f"{self.show(left)} {operator} {self.show(right)} = {self.show(result)}"
        self.steps.append(Step(text.format(shown), left, operator, right, result))
        if result <= 0 or result > LARGEST or len(self.steps) > MAX_STEPS:
            raise Retry
        return result

    def whole(self, value: Decimal) -> Decimal:
        """The value. Raises Retry unless it is a whole number."""
        if value != value.to_integral_value():
            raise Retry
        return value


def _divide(left: Decimal, right: Decimal) -> Decimal:
    quotient = (left / right).quantize(Decimal("0.01"))
    if quotient * right != left:
        raise Retry
    return quotient


OPERATIONS: dict[str, Callable[[Decimal, Decimal], Decimal]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": _divide,
}
Template = Callable[[Draft], Decimal]
