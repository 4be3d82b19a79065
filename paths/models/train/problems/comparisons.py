"""Quantities of several people, each told relative to the one before: more, fewer, twice, half."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from functools import partial
from itertools import product

from paths.models.train.problems.draft import MAX_STEPS, Draft, Template
from paths.models.train.problems.things import THINGS

Relation = Callable[[Draft, str, str, Decimal, str], Decimal]
TIMES = {2: "twice", 3: "three times", 4: "four times", 5: "five times"}


def _more(draft: Draft, who: str, other: str, value: Decimal, many: str) -> Decimal:
    n = draft.part()
    shown = draft.show(n)
    draft.say(
        f"{who} has {shown} more {many} than {other}.",
        f"{who} has {shown} more than {other}.",
        f"{other} has {shown} fewer {many} than {who}.",
    )
    return draft.step(f"{who} has {{}} {many}.", value, "+", n)


def _fewer(draft: Draft, who: str, other: str, value: Decimal, many: str) -> Decimal:
    n = draft.part()
    shown = draft.show(n)
    draft.say(
        f"{who} has {shown} fewer {many} than {other}.",
        f"{who} has {shown} fewer than {other}.",
        f"{other} has {shown} more {many} than {who}.",
    )
    return draft.step(f"{who} has {{}} {many}.", value, "-", n)


def _times(draft: Draft, who: str, other: str, value: Decimal, many: str) -> Decimal:
    factor = draft.pick((2, 2, 2, 3, 3, 4, 5))
    draft.say(
        f"{who} has {TIMES[factor]} as many {many} as {other}.",
        f"{who} has {TIMES[factor]} as many as {other}.",
    )
    return draft.step(f"{who} has {{}} {many}.", value, "*", factor)


def _half(draft: Draft, who: str, other: str, value: Decimal, many: str) -> Decimal:
    draft.say(
        f"{who} has half as many {many} as {other}.",
        f"{who} has half as many as {other}.",
        f"{other} has twice as many {many} as {who}.",
    )
    return draft.whole(draft.step(f"{who} has {{}} {many}.", value, "/", 2))


RELATIONS: dict[str, Relation] = {"more": _more, "fewer": _fewer, "times": _times, "half": _half}
QUESTIONS = ("last", "total", "difference", "share")


def compare(draft: Draft, *, relations: tuple[str, ...], question: str) -> Decimal:
    """Each person relative to the one before, and the question."""
    many = draft.pick(THINGS).many
    people = [str(draft.person())]
    values = [draft.amount()]
    draft.say(
        f"{people[0]} has {draft.show(values[0])} {many}.",
        f"{people[0]} collected {draft.show(values[0])} {many}.",
    )
    for relation in relations:
        who = str(draft.person())
        values.append(RELATIONS[relation](draft, who, people[-1], values[-1], many))
        people.append(who)
    return _ask(draft, question, people, values, many)


def _ask(draft: Draft, question: str, people: list[str], values: list[Decimal], many: str) -> Decimal:
    first, last = people[0], people[-1]
    if question == "last":
        draft.say(f"How many {many} does {last} have?", f"How many does {last} have?")
        return values[-1]
    if question == "difference":
        low, high = sorted((values[0], values[-1]))
        more, less = (first, last) if values[0] == high else (last, first)
        draft.say(
            f"How many more {many} does {more} have than {less}?",
            f"What is the difference between the {many} of {more} and {less}?",
        )
        return draft.step("The difference is {}.", high, "-", low)
    total = values[0]
    for value in values[1:]:
        total = draft.step(f"Together they have {{}} {many}.", total, "+", value)
    if question == "total":
        draft.say(
            f"How many {many} do they have together?",
            f"How many {many} do they have in total?",
        )
        return total
    k = draft.few()
    draft.say(
        f"They put all {many} into {draft.show(k)} equal piles. How many are in each pile?",
        f"They share all {many} equally among {draft.show(k)} children. How many does each child get?",
    )
    return draft.whole(draft.step("Each gets {}.", total, "/", k))


def _templates() -> dict[str, Template]:
    found: dict[str, Template] = {}
    for length in (1, 2, 3):
        for relations in product(RELATIONS, repeat=length):
            for question in QUESTIONS:
                steps = length + {"last": 0, "difference": 1, "total": length, "share": length + 1}[question]
                trivial = length == 1 and question == "difference" and relations[0] in ("more", "fewer")
                if steps <= MAX_STEPS and not trivial:
                    name = f"compare.{'_'.join(relations)}.{question}"
                    found[name] = partial(compare, relations=relations, question=question)
    return found


AGES = ("last", "later", "total")


def _age(draft: Draft, *, relations: tuple[str, ...], question: str) -> Decimal:
    """The same relations between ages."""
    people = [str(draft.person())]
    ages = [draft.between(4, 30)]
    draft.say(f"{people[0]} is {draft.show(ages[0])} years old.")
    for relation in relations:
        who, n = str(draft.person()), draft.between(2, 15)
        other, age = people[-1], ages[-1]
        if relation == "older":
            draft.say(f"{who} is {draft.show(n)} years older than {other}.")
            ages.append(draft.step(f"{who} is {{}} years old.", age, "+", n))
        elif relation == "younger":
            draft.say(f"{who} is {draft.show(n)} years younger than {other}.")
            ages.append(draft.step(f"{who} is {{}} years old.", age, "-", n))
        else:
            factor = draft.pick((2, 2, 3))
            draft.say(f"{who} is {TIMES[factor]} as old as {other}.")
            ages.append(draft.step(f"{who} is {{}} years old.", age, "*", factor))
        people.append(who)
    last = people[-1]
    if question == "last":
        draft.say(f"How old is {last}?", f"What is the age of {last}?")
        return ages[-1]
    if question == "later":
        n = draft.between(2, 12)
        draft.say(f"How old will {last} be in {draft.show(n)} years?")
        return draft.step(f"Then {last} is {{}} years old.", ages[-1], "+", n)
    draft.say("What is the sum of their ages?", "How old are they together?")
    total = ages[0]
    for age in ages[1:]:
        total = draft.step("Together they are {} years old.", total, "+", age)
    return total


def _age_templates() -> dict[str, Template]:
    found: dict[str, Template] = {}
    for length in (1, 2):
        for relations in product(("older", "younger", "times"), repeat=length):
            for question in AGES:
                name = f"age.{'_'.join(relations)}.{question}"
                found[name] = partial(_age, relations=relations, question=question)
    return found


TEMPLATES = _templates() | _age_templates()
