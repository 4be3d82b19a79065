"""Baskets and bills: what was bought, what changes the price, and what is asked."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from itertools import product

from paths.models.train.problems.draft import MAX_STEPS, Draft, Retry, Template
from paths.models.train.problems.follow import Scene, Told, followed
from paths.models.train.problems.things import GOODS, ONE_GOOD, THINGS

BASKETS = {"one": 0, "one_two": 1, "lines": 1, "line_one": 2, "two_lines": 3}  # with their steps
CHANGES = {"as_is": 0, "coupon": 1, "delivery": 1, "half_price": 1}
ASKED = {"total": 0, "change": 1, "missing": 1, "split": 1}


def _line(draft: Draft, who: str) -> Decimal:
    """Several pieces of one good at one price."""
    k, p, good = draft.few(), draft.price(), draft.pick(GOODS)
    draft.say(
        f"{who} buys {draft.show(k)} {good} for {draft.money(p)} each.",
        f"{who} buys {draft.show(k)} {good} that cost {draft.money(p)} each.",
        f"{who} takes {draft.show(k)} {good} at {draft.money(p)} each.",
    )
    return draft.step(f"The {good} cost {{}} dollars.", k, "*", p)


def _one(draft: Draft, who: str) -> Decimal:
    p, good = draft.price() + draft.part(), draft.pick(ONE_GOOD)
    draft.say(
        f"{who} buys a {good} for {draft.money(p)}.",
        f"{who} pays {draft.money(p)} for a {good}.",
        f"{who} chooses a {good} that costs {draft.money(p)}.",
    )
    return p


def _basket(draft: Draft, kind: str, who: str, she: str) -> Decimal:
    if kind == "one":
        return _one(draft, who)
    if kind == "lines":
        return _line(draft, who)
    first = _one(draft, who) if kind == "one_two" else _line(draft, who)
    also = f"Then {she}"
    second = _line(draft, also) if kind == "two_lines" else _one(draft, also)
    return draft.step("Together that is {} dollars.", first, "+", second)


def _changed(draft: Draft, kind: str, total: Decimal, she: str) -> Decimal:
    n = draft.between(2, 15)
    if kind == "coupon":
        draft.say(
            f"A coupon takes {draft.money(n)} off.",
            f"{she.capitalize()} gets a discount of {draft.money(n)}.",
            f"The shop lowers the bill by {draft.money(n)}.",
        )
        return draft.step("With the discount it is {} dollars.", total, "-", n)
    if kind == "delivery":
        draft.say(
            f"Delivery costs {draft.money(n)} more.",
            f"There is also a tax of {draft.money(n)}.",
            f"{she.capitalize()} adds a tip of {draft.money(n)}.",
        )
        return draft.step("With that it is {} dollars.", total, "+", n)
    if kind == "half_price":
        draft.say("Everything is sold at half price today.", "The shop takes half off the bill.")
        return draft.step("Half of it is {} dollars.", total, "/", 2)
    return total


def shopping(draft: Draft, *, basket: str, changes: tuple[str, ...], asked: str) -> Decimal:
    """What is bought, what changes the bill, and what is asked."""
    who = draft.person()
    total = _basket(draft, basket, str(who), who.she)
    for change in changes:
        total = _changed(draft, change, total, who.she)
    if asked == "total":
        if not draft.steps:
            raise Retry
        draft.say(
            f"How much does {who} pay in total?",
            f"How many dollars does {who.she} spend?",
            f"What does {who} pay?",
        )
        return total
    if asked == "split":
        k = draft.between(2, 6)
        draft.say(
            f"{draft.show(k)} friends share the cost equally. How much does each pay?",
            f"If {draft.show(k)} people split the bill equally, how many dollars does each pay?",
        )
        return draft.step("Each pays {} dollars.", total, "/", k)
    if asked == "missing":
        had = draft.between(1, max(int(total) - 1, 1))
        draft.say(
            f"{who.She} has only {draft.money(had)}. How much more money does {who.she} need?",
            f"How many dollars are missing if {who.she} has {draft.money(had)}?",
        )
        return draft.step(f"{who.She} needs {{}} more dollars.", total, "-", had)
    notes = [note for note in (5, 10, 20, 50, 100, 200, 500, 1000, 5000) if note > total]
    note = Decimal(draft.pick(notes[:2]))
    draft.say(
        f"{who.She} pays with {draft.money(note)}. How much change does {who.she} get?",
        f"How much is left of the {draft.money(note)} that {who.she} had?",
        f"{who} had {draft.money(note)}. How many dollars are left?",
    )
    return draft.step(f"{who.She} has {{}} dollars left.", note, "-", total)


def _profit(draft: Draft, *, kind: str) -> Told:
    """Things bought or made at one price and sold at another."""
    who, many, k = draft.person(), draft.pick(THINGS).many, draft.few(12)
    low = draft.price()
    high = low + draft.between(1, 9)
    draft.say(
        f"{who} buys {draft.show(k)} {many} for {draft.money(low)} each and sells them for "
        f"{draft.money(high)} each.",
        f"{who} makes {draft.show(k)} {many} at a cost of {draft.money(low)} each and sells each for "
        f"{draft.money(high)}.",
    )
    gain = draft.step("Each brings {} dollars of profit.", high, "-", low)
    total = draft.step("All bring {} dollars.", k, "*", gain)
    if kind == "half":
        draft.say(
            f"Half of the profit goes to {draft.friend()}.", f"{who.She} gives away half of the profit."
        )
        total = draft.step("Half of it is {} dollars.", total, "/", 2)
    return Told(total, "dollars", (f"How much profit does {who} make?", "What is the profit in dollars?"))


PROFITS: dict[str, Scene] = {kind: partial(_profit, kind=kind) for kind in ("all", "half")}


def _templates() -> dict[str, Template]:
    found: dict[str, Template] = {}
    for basket, change, asked in product(BASKETS, CHANGES, ASKED):
        steps = BASKETS[basket] + CHANGES[change] + ASKED[asked]
        if 1 <= steps <= MAX_STEPS:
            name = f"shopping.{basket}.{change}.{asked}"
            found[name] = partial(shopping, basket=basket, changes=(change,), asked=asked)
    return found | followed("profit", PROFITS, "ask plus minus times split")


TEMPLATES = _templates()
