"""So much per hour or day: distance, work, pay and reading."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from itertools import product

from paths.models.train.problems.draft import MAX_STEPS, Draft, Template
from paths.models.train.problems.names import Person
from paths.models.train.problems.things import ONE_GOOD


@dataclass(frozen=True)
class Activity:
    """`does` with a number per `unit`, for `units`; `what` is counted."""

    does: str
    what: str
    unit: str
    units: str
    money: bool = False


ACTIVITIES = (
    Activity("drives", "miles", "hour", "hours"),
    Activity("cycles", "miles", "hour", "hours"),
    Activity("walks", "miles", "day", "days"),
    Activity("runs", "laps", "day", "days"),
    Activity("reads", "pages", "day", "days"),
    Activity("reads", "pages", "hour", "hours"),
    Activity("types", "words", "minute", "minutes"),
    Activity("bakes", "pies", "hour", "hours"),
    Activity("paints", "walls", "day", "days"),
    Activity("packs", "boxes", "hour", "hours"),
    Activity("plants", "trees", "day", "days"),
    Activity("writes", "letters", "week", "weeks"),
    Activity("earns", "dollars", "hour", "hours", money=True),
    Activity("earns", "dollars", "day", "days", money=True),
    Activity("saves", "dollars", "week", "weeks", money=True),
    Activity("saves", "dollars", "month", "months", money=True),
)
LEGS = {"one": 1, "two": 3, "extra": 2, "two_days": 2}
ASKED = {"total": 0, "remaining": 1, "time": 2, "spend": 1, "twice": 1}


def leg(draft: Draft, who: str, activity: Activity) -> Decimal:
    """So much per unit, for so many units."""
    rate, k = (draft.price() if activity.money else draft.group()), draft.few(12)
    shown = draft.money(rate) if activity.money else f"{draft.show(rate)} {activity.what}"
    draft.say(
        f"{who} {activity.does} {shown} per {activity.unit} for {draft.show(k)} {activity.units}.",
        f"For {draft.show(k)} {activity.units} {who} {activity.does} {shown} each {activity.unit}.",
        f"{who} {activity.does} {shown} every {activity.unit} and does so for {draft.show(k)} "
        f"{activity.units}.",
    )
    return draft.step(f"In that time it is {{}} {activity.what}.", k, "*", rate)


def _progress(draft: Draft, legs: str, who: Person, activity: Activity) -> Decimal:
    if legs == "two_days":
        first, second = draft.amount(), draft.part()
        draft.say(
            f"{who} {activity.does} {draft.show(first)} {activity.what} on Monday and "
            f"{draft.show(second)} more "
            f"on Tuesday than on Monday.",
        )
        then = draft.step(f"On Tuesday it is {{}} {activity.what}.", first, "+", second)
        return draft.step(f"On both days it is {{}} {activity.what}.", first, "+", then)
    total = leg(draft, str(who), activity)
    if legs == "two":
        more = leg(draft, who.she, activity)
        return draft.step(f"In total it is {{}} {activity.what}.", total, "+", more)
    if legs == "extra":
        n = draft.part()
        shown = draft.money(n) if activity.money else f"{draft.show(n)} {activity.what}"
        draft.say(
            f"Before that, {who.she} already had {shown}.",
            f"{who.She} had {shown} before.",
        )
        return draft.step(f"In total it is {{}} {activity.what}.", total, "+", n)
    return total


def twice(draft: Draft, total: Decimal, what: str) -> Decimal:
    """Somebody else does a multiple of it."""
    k = draft.between(2, 4)
    other = draft.person()
    draft.say(f"{other} does {draft.show(k)} times as much. How many {what} is that for {other}?")
    return draft.step(f"For {other} it is {{}} {what}.", total, "*", k)


def _rate(draft: Draft, *, legs: str, asked: str) -> Decimal:
    who = draft.person()
    activity = draft.pick([a for a in ACTIVITIES if a.money] if asked == "spend" else ACTIVITIES)
    what = activity.what
    total = _progress(draft, legs, who, activity)
    if asked == "total":
        draft.say(f"How many {what} is that in total?", f"How many {what} is that altogether?")
        return total
    if asked == "twice":
        return twice(draft, total, what)
    if asked == "spend":
        n, good = draft.part(), draft.pick(ONE_GOOD)
        draft.say(
            f"{who.She} spends {draft.money(n)} on a {good}. How many dollars are left?",
            f"After {who.she} buys a {good} for {draft.money(n)}, how much money is left?",
        )
        return draft.step("There are {} dollars left.", total, "-", n)
    pace = draft.few()
    goal = total + (pace * draft.few() if asked == "time" else draft.part())
    shown = draft.money(goal) if activity.money else f"{draft.show(goal)} {what}"
    if asked == "remaining":
        draft.say(
            f"The goal is {shown}. How many {what} are missing?",
            f"{who.She} wants to reach {shown}. How many more {what} does {who.she} need?",
        )
        return draft.step(f"The rest is {{}} {what}.", goal, "-", total)
    per = draft.money(pace) if activity.money else f"{draft.show(pace)} {what}"
    draft.say(
        f"The goal is {shown}. At {per} per {activity.unit}, how many {activity.units} will the rest take?",
        f"{who.She} wants to reach {shown} and now does {per} per {activity.unit}. "
        f"How many more {activity.units} does {who.she} need?",
    )
    rest = draft.step(f"The rest is {{}} {what}.", goal, "-", total)
    return draft.whole(draft.step(f"It takes {{}} {activity.units}.", rest, "/", pace))


def _templates() -> dict[str, Template]:
    found: dict[str, Template] = {}
    for legs, asked in product(LEGS, ASKED):
        money_only = asked == "spend" and legs == "two_days"
        if LEGS[legs] + ASKED[asked] <= MAX_STEPS and not money_only:
            found[f"rate.{legs}.{asked}"] = partial(_rate, legs=legs, asked=asked)
    return found


TEMPLATES = _templates()
