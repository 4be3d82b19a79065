"""Single equations, harder than most of those in the problems: few of these have large operands or cents."""

from __future__ import annotations

import random
from decimal import Decimal

from paths.models.train.problems.draft import LARGEST, OPERATIONS

OPERATORS = {"+": 3, "-": 5, "*": 4, "/": 2}
CENTS_SHARE = 0.2


def equation(rng: random.Random) -> str:
    """`a ∘ b = c` with a result between 1 and `LARGEST`, written as the answers to problems write it."""
    operator = rng.choices(list(OPERATORS), list(OPERATORS.values()))[0]
    while True:
        left, right = _operands(rng, operator)
        result = OPERATIONS[operator](left, right)
        if 0 < result <= LARGEST and left <= LARGEST:
            return f"{_show(left)} {operator} {_show(right)} = {_show(result)}"


def _operands(rng: random.Random, operator: str) -> tuple[Decimal, Decimal]:
    cents = rng.random() < CENTS_SHARE
    if operator in "+-":
        pair = [_number(rng, cents=cents), _number(rng, cents=cents and rng.random() < 0.5)]
        return (pair[0], pair[1]) if operator == "+" else (max(pair), min(pair))
    small = Decimal(rng.randint(2, 12) if rng.random() < 0.8 else rng.randint(13, 30))
    other = _number(rng, cents=cents)
    if operator == "/":
        return other * small, small
    return (small, other) if rng.random() < 0.5 else (other, small)


def _number(rng: random.Random, *, cents: bool) -> Decimal:
    if cents:
        return rng.randint(1, 600) * Decimal("0.05")
    low, high = rng.choice(((2, 20), (10, 100), (10, 100), (100, 1000), (100, 1000), (1000, 5000)))
    return Decimal(rng.randrange(low, high))


def _show(value: Decimal) -> str:
    return str(int(value)) if value == value.to_integral_value() else f"{value:.2f}"
