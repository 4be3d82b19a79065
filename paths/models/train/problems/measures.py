"""Time, lengths, weights, ways and savings."""

from __future__ import annotations

from decimal import Decimal
from functools import partial

from paths.models.train.problems.draft import Draft
from paths.models.train.problems.follow import Scene, Told, followed
from paths.models.train.problems.things import ONE_GOOD

TASKS = ("homework", "piano", "reading", "cleaning", "football", "cooking", "swimming", "painting", "chess")


def _minutes(value: Decimal, who: object) -> Told:
    return Told(
        value, "minutes", ("How many minutes is that in total?", f"How many minutes does {who} need?")
    )


def _daily(draft: Draft) -> Told:
    who, task, minutes, days = draft.person(), draft.pick(TASKS), draft.between(2, 12) * 5, draft.few(7)
    draft.say(
        f"{who} spends {draft.show(minutes)} minutes a day on {task} for {draft.show(days)} days.",
        f"On each of {draft.show(days)} days {who} spends {draft.show(minutes)} minutes on {task}.",
    )
    return _minutes(draft.step("That is {} minutes.", days, "*", minutes), who)


def _hours(draft: Draft) -> Told:
    who, task, hours = draft.person(), draft.pick(TASKS), draft.few(6)
    draft.say(
        f"{who} spends {draft.show(hours)} hours on {task}.",
        f"For {task} {who} uses {draft.show(hours)} hours.",
    )
    return _minutes(draft.step("That is {} minutes.", hours, "*", 60), who)


def _two_tasks(draft: Draft, *, kind: str) -> Told:
    who, task = draft.person(), draft.pick(TASKS)
    other = draft.pick([t for t in TASKS if t != task])
    minutes = draft.between(2, 12) * 5
    if kind == "twice":
        factor, word = draft.pick(((2, "twice"), (3, "three times")))
        draft.say(
            f"{who} spends {draft.show(minutes)} minutes on {task} and {word} as long on {other}.",
            f"{who} needs {draft.show(minutes)} minutes for {task}. For {other} {who.she} "
            f"needs {word} as long.",
        )
        more = draft.step(f"The {other} takes {{}} minutes.", minutes, "*", factor)
    else:
        more = draft.between(1, 15) * 5
        draft.say(
            f"{who} spends {draft.show(minutes)} minutes on {task} and {draft.show(more)} "
            f"minutes on {other}.",
            f"{who} needs {draft.show(minutes)} minutes for {task}. Then {other} takes "
            f"{draft.show(more)} minutes.",
        )
    total = draft.step("Together that is {} minutes.", minutes, "+", more)
    if kind == "left":
        free = total + draft.between(1, 10) * 5
        draft.say(
            f"{who.She} has {draft.show(free)} minutes of time.", f"{who} has {draft.show(free)} minutes."
        )
        left = draft.step("There are {} minutes left.", free, "-", total)
        return Told(
            left, "minutes", ("How many minutes are left?", f"How many minutes does {who} have left?")
        )
    return _minutes(total, who)


def _laps(draft: Draft) -> Told:
    who, lap = draft.person(), draft.between(2, 9)
    total = lap * draft.few(12)
    draft.say(
        f"One lap takes {who} {draft.show(lap)} minutes. {who.She} runs for {draft.show(total)} minutes.",
        f"{who} runs for {draft.show(total)} minutes and needs {draft.show(lap)} minutes for one lap.",
    )
    value = draft.step(f"{who.She} runs {{}} laps.", total, "/", lap)
    return Told(value, "laps", (f"How many laps does {who} run?", "How many laps is that?"))


STUFF = (
    ("rope", "meters"),
    ("ribbon", "meters"),
    ("cable", "feet"),
    ("bag of rice", "pounds"),
    ("box", "kilograms"),
    ("tank of water", "liters"),
    ("can of paint", "liters"),
)


def _tenths(draft: Draft) -> Decimal:
    """A length or weight, half of them with one decimal."""
    if draft.chance(0.5):
        return draft.between(2, 40)
    return draft.between(5, 60) * (Decimal("0.5") if draft.chance(0.7) else Decimal("0.1"))


def _measure(draft: Draft, *, kind: str) -> Told:
    who, (thing, unit) = draft.person(), draft.pick(STUFF)
    size, other, k = _tenths(draft), _tenths(draft), draft.few()
    asks = (f"How many {unit} is that in total?", f"How many {unit} are there in total?")
    left = (f"How many {unit} are left?", f"How many {unit} remain?")
    if kind in ("many", "many_rest"):
        draft.say(
            f"{who} needs {draft.show(k)} pieces of {draft.show(size)} {unit} each.",
            f"{who} uses {draft.show(size)} {unit} on each of {draft.show(k)} days.",
        )
        total = draft.step(f"That is {{}} {unit}.", k, "*", size)
        if kind == "many":
            return Told(total, unit, asks)
        draft.say(
            f"There were {draft.show(total + other)} {unit}.",
            f"{who} had {draft.show(total + other)} {unit}.",
        )
        return Told(draft.step(f"There are {{}} {unit} left.", total + other, "-", total), unit, left)
    if kind == "pieces":
        draft.say(
            f"A {thing} of {draft.show(size * k)} {unit} is divided into {draft.show(k)} equal parts.",
            f"{who} divides a {thing} of {draft.show(size * k)} {unit} into {draft.show(k)} equal parts.",
        )
        value = draft.step(f"Each part is {{}} {unit}.", size * k, "/", k)
        return Told(value, unit, (f"How many {unit} is each part?", f"How many {unit} does one part have?"))
    if kind == "cut":
        draft.say(
            f"{who} has a {thing} of {draft.show(size + other)} {unit} and takes "
            f"{draft.show(size)} {unit} of it.",
            f"From a {thing} of {draft.show(size + other)} {unit} {who} takes {draft.show(size)} {unit}.",
        )
        return Told(draft.step(f"There are {{}} {unit} left.", size + other, "-", size), unit, left)
    draft.say(
        f"{who} has a {thing} of {draft.show(size)} {unit} and another of {draft.show(other)} {unit}.",
        f"One {thing} has {draft.show(size)} {unit}, another has {draft.show(other)} {unit}.",
    )
    return Told(draft.step(f"Both have {{}} {unit}.", size, "+", other), unit, asks)


def _trip(draft: Draft, *, kind: str) -> Told:
    who, miles = draft.person(), draft.amount()
    asks = (f"How many miles does {who} go?", "How many miles is that?")
    if kind == "there_and_back":
        draft.say(
            f"The way to the office of {who} is {draft.show(miles)} miles long. {who.She} goes "
            f"there and back.",
            f"{who} drives {draft.show(miles)} miles to a lake and the same way and back.",
        )
        return Told(draft.step("There and back it is {} miles.", miles, "*", 2), "miles", asks)
    if kind == "two_parts":
        more = draft.part()
        draft.say(
            f"{who} goes {draft.show(miles)} miles by train and {draft.show(more)} miles by bus.",
            f"{who} first drives {draft.show(miles)} miles and then walks {draft.show(more)} miles.",
        )
        return Told(draft.step("Together that is {} miles.", miles, "+", more), "miles", asks)
    if kind == "rest":
        whole = miles + draft.part()
        draft.say(
            f"A trip is {draft.show(whole)} miles long. {who} has gone {draft.show(miles)} miles.",
            f"{who} has gone {draft.show(miles)} miles of a way of {draft.show(whole)} miles.",
        )
        rest = draft.step("The rest is {} miles.", whole, "-", miles)
        return Told(rest, "miles", ("How many miles are left?", "How many miles remain?"))
    per, gallons = draft.few(12) * 5, draft.few()
    draft.say(
        f"The car of {who} goes {draft.show(per)} miles per gallon. {who.She} uses "
        f"{draft.show(gallons)} gallons.",
        f"With one gallon {who} drives {draft.show(per)} miles. {who.She} has {draft.show(gallons)} gallons.",
    )
    return Told(draft.step("That is {} miles.", gallons, "*", per), "miles", asks)


def _weeks(draft: Draft, *, had: bool) -> Told:
    """How long one saves for something."""
    who, good, weekly, weeks = draft.person(), draft.pick(ONE_GOOD), draft.few(12), draft.few(12)
    start = _start(draft, who) if had else Decimal(0)
    price = weekly * weeks + start
    draft.say(
        f"{who} saves {draft.money(weekly)} a week for a {good} that costs {draft.money(price)}.",
        f"A {good} costs {draft.money(price)}, and {who} puts away {draft.money(weekly)} every week.",
    )
    if had:
        price = draft.step(f"{who.She} still needs {{}} dollars.", price, "-", start)
    value = draft.step("It takes {} weeks.", price, "/", weekly)
    return Told(
        value, "weeks", (f"How many weeks must {who} save?", f"In how many weeks can {who.she} buy it?")
    )


def _saved(draft: Draft, *, had: bool, missing: bool) -> Told:
    """How much one has saved, or still needs."""
    who, weekly, weeks = draft.person(), draft.few(15), draft.few(12)
    start = _start(draft, who) if had else Decimal(0)
    draft.say(
        f"{who} saves {draft.money(weekly)} a week for {draft.show(weeks)} weeks.",
        f"For {draft.show(weeks)} weeks {who} puts away {draft.money(weekly)} every week.",
    )
    saved = draft.step(f"{who.She} saves {{}} dollars.", weekly, "*", weeks)
    if had:
        saved = draft.step("With the money from before it is {} dollars.", saved, "+", start)
    if not missing:
        asks = (f"How much money does {who} have then?", f"How many dollars does {who} have after that?")
        return Told(saved, "dollars", asks)
    good, price = draft.pick(ONE_GOOD), saved + draft.part()
    draft.say(f"A {good} costs {draft.money(price)}.", f"{who.She} wants a {good} for {draft.money(price)}.")
    left = draft.step("There are {} dollars missing.", price, "-", saved)
    return Told(left, "dollars", ("How many dollars are missing?", f"How much more money does {who} need?"))


def _start(draft: Draft, who: object) -> Decimal:
    start = draft.part()
    draft.say(f"{who} has {draft.money(start)} in a box.", f"{who} already has {draft.money(start)}.")
    return start


CLOCK: dict[str, Scene] = {"daily": _daily, "hours": _hours, "laps": _laps}
CLOCK |= {f"tasks_{kind}": partial(_two_tasks, kind=kind) for kind in ("sum", "twice", "left")}
MEASURES: dict[str, Scene] = {
    kind: partial(_measure, kind=kind) for kind in ("many", "many_rest", "cut", "sum", "pieces")
}
TRIPS: dict[str, Scene] = {
    kind: partial(_trip, kind=kind) for kind in ("there_and_back", "two_parts", "rest", "fuel")
}
SAVINGS: dict[str, Scene] = {
    "weeks": partial(_weeks, had=False),
    "weeks_had": partial(_weeks, had=True),
    "saved": partial(_saved, had=False, missing=False),
    "saved_had": partial(_saved, had=True, missing=False),
    "missing": partial(_saved, had=False, missing=True),
    "missing_had": partial(_saved, had=True, missing=True),
}
TEMPLATES = {
    **followed("time", CLOCK, "ask plus times"),
    **followed("measure", MEASURES, "ask plus minus times split"),
    **followed("trip", TRIPS, "ask plus times"),
    **followed("saving", SAVINGS, "ask plus"),
}
