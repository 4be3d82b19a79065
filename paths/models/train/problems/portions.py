"""Parts of a whole: percentages, fractions, leftovers, recipes, and things in rows."""

from __future__ import annotations

from decimal import Decimal
from functools import partial
from itertools import product

from paths.models.train.problems.draft import Draft
from paths.models.train.problems.follow import Scene, Told, followed
from paths.models.train.problems.things import THINGS

# a percentage as a division and, if needed, a multiplication
PERCENTS = {10: (10, 1), 20: (5, 1), 25: (4, 1), 50: (2, 1), 30: (10, 3), 40: (5, 2), 60: (5, 3), 75: (4, 3)}
SIMPLE = (10, 20, 25, 50)
BIG = (30, 40, 60, 75)
FRACTIONS = {"A third": 3, "A quarter": 4, "A fifth": 5, "Half": 2, "A tenth": 10}
GROUPS = (
    ("children", "in a school", "play football", "do not play football"),
    ("people", "at a party", "are dancing", "are not dancing"),
    ("cars", "in a parking lot", "are red", "are not red"),
    ("birds", "in a park", "can swim", "cannot swim"),
    ("books", "in a library", "are new", "are not new"),
    ("apples", "in a box", "are green", "are not green"),
    ("seats", "in a hall", "are taken", "are free"),
    ("flowers", "in a garden", "are white", "are not white"),
    ("workers", "in a factory", "come by bus", "do not come by bus"),
    ("eggs", "in a basket", "are brown", "are not brown"),
)


def _whole_for(draft: Draft, divisor: int) -> Decimal:
    """A total that the divisor divides."""
    most = {"small": 12, "medium": 40, "large": 60, "huge": 400}[draft.scale]
    return draft.between(2, most) * divisor


def _part_of(draft: Draft, kind: str) -> tuple[str, Decimal, Decimal]:
    """How the share is told, the total, and the share as the steps compute it."""
    if kind == "fraction":
        word = draft.pick(tuple(FRACTIONS))
        total = _whole_for(draft, FRACTIONS[word])
        return word, total, draft.step("The share is {}.", total, "/", FRACTIONS[word])
    percent = draft.pick(SIMPLE if kind == "percent" else BIG)
    divisor, times = PERCENTS[percent]
    total = _whole_for(draft, divisor)
    part = draft.step(f"{100 // divisor}% is {{}}.", total, "/", divisor)
    if times > 1:
        part = draft.step(f"{percent}% is {{}}.", part, "*", times)
    return f"{percent}%", total, part


def _share(draft: Draft, *, kind: str, rest: bool) -> Told:
    crowd, place, are, are_not = draft.pick(GROUPS)
    told, total, part = _part_of(draft, kind)
    draft.say(
        f"There are {draft.show(total)} {crowd} {place}. {told} of them {are}.",
        f"Of {draft.show(total)} {crowd} {place}, {told[0].lower()}{told[1:]} {are}.",
    )
    if not rest:
        return Told(part, crowd, (f"How many {crowd} {are}?", f"How many of them {are}?"))
    draft.say(f"The others {are_not}.", f"All others {are_not}.")
    left = draft.step("The rest is {}.", total, "-", part)
    return Told(left, crowd, (f"How many {crowd} {are_not}?", f"How many of them {are_not}?"))


def _price(draft: Draft, *, up: bool, coupon: bool) -> Told:
    percent = draft.pick(SIMPLE)
    divisor, _ = PERCENTS[percent]
    price = _whole_for(draft, divisor)
    good = draft.pick(("coat", "lamp", "bike", "phone", "table", "ticket", "bed", "camera", "carpet"))
    part = draft.step(f"{percent}% is {{}} dollars.", price, "/", divisor)
    if up:
        draft.say(
            f"The price of a {good} was {draft.money(price)}. It rises by {percent}%.",
            f"A {good} costs {draft.money(price)}. Then it becomes {percent}% more expensive.",
        )
    else:
        draft.say(
            f"A {good} costs {draft.money(price)}. It is sold with {percent}% off.",
            f"A shop sells a {good} that was {draft.money(price)} at a discount of {percent}%.",
        )
    new = draft.step("The new price is {} dollars.", price, "+" if up else "-", part)
    if coupon:
        n = draft.between(1, 9)
        draft.say(
            f"A coupon takes {draft.money(n)} off.", f"The customer also has a coupon for {draft.money(n)}."
        )
        new = draft.step("With the coupon it is {} dollars.", new, "-", n)
    return Told(new, "dollars", ("What is the new price?", f"What does the {good} cost now?"))


def _leftover(draft: Draft, *, two_sources: bool) -> Told:
    """What remains when things go into containers of one size."""
    who, thing = draft.person(), draft.pick(THINGS)
    size, boxes = draft.between(3, 9), draft.few(12)
    rest = draft.between(1, int(size) - 1)
    total = size * boxes + rest
    many = thing.many
    if two_sources:
        first = draft.between(1, int(total) - 1)
        draft.say(f"{who} has {draft.show(first)} {many} and gets {draft.show(total - first)} more.")
        draft.step(f"{who.She} has {{}} {many}.", first, "+", total - first)
    else:
        draft.say(f"{who} has {draft.show(total)} {many}.", f"{who} picks up {draft.show(total)} {many}.")
    draft.say(
        f"{who.She} fills {draft.show(boxes)} {thing.packs} with {draft.show(size)} {many} each.",
        f"{who.She} puts {draft.show(size)} {many} into each of {draft.show(boxes)} {thing.packs}.",
    )
    packed = draft.step(f"The {thing.packs} take {{}} {many}.", boxes, "*", size)
    left = draft.step("There are {} left.", total, "-", packed)
    return Told(left, many, (f"How many {many} are left over?", f"How many {many} remain?"))


FOODS = ("soup", "cake", "bread", "pancakes", "salad", "stew", "pudding", "rice")
PARTS = ("eggs", "cups of flour", "spoons of sugar", "carrots", "tomatoes", "cups of milk", "onions")


def _batches(draft: Draft, *, kind: str) -> Told:
    """A number of batches of one size: what they need, what is missing, or how many can be made."""
    who, food, part = draft.person(), draft.pick(FOODS), draft.pick(PARTS)
    need, times = draft.between(2, 9), draft.few()
    if kind == "possible":
        have = need * times
        draft.say(
            f"One batch of {food} needs {draft.show(need)} {part}. {who} has {draft.show(have)} {part}.",
            f"{who} has {draft.show(have)} {part} and needs {draft.show(need)} for one batch of {food}.",
        )
        value = draft.step("That is enough for {} batches.", have, "/", need)
        return Told(
            value, "batches", (f"How many batches can {who} make?", "For how many batches is that enough?")
        )
    draft.say(
        f"One batch of {food} needs {draft.show(need)} {part}. {who} makes {draft.show(times)} batches.",
        f"{who} makes {draft.show(times)} batches of {food} with {draft.show(need)} {part} in each.",
    )
    total = draft.step(f"That needs {{}} {part}.", times, "*", need)
    if kind == "missing":
        have = draft.between(1, int(total) - 1)
        draft.say(
            f"{who.She} has only {draft.show(have)} {part}.", f"There are {draft.show(have)} {part} at home."
        )
        left = draft.step("There are {} missing.", total, "-", have)
        return Told(left, part, (f"How many {part} are missing?", f"How many more {part} does {who} need?"))
    if kind == "cost":
        price = draft.price()
        draft.say(f"Each of the {part} costs {draft.money(price)}.")
        cost = draft.step("They cost {} dollars.", total, "*", price)
        return Told(cost, "dollars", ("What do they cost in dollars?", f"How much does {who} pay?"))
    return Told(total, part, (f"How many {part} does {who} need?", f"How many {part} is that in total?"))


def _guests(draft: Draft) -> Told:
    """A recipe for some people, cooked for more."""
    who, food, part = draft.person(), draft.pick(FOODS), draft.pick(PARTS)
    need, people, times = draft.between(2, 9), draft.between(2, 6), draft.few()
    guests = people * times
    draft.say(
        f"A recipe of {food} for {draft.show(people)} people needs {draft.show(need)} {part}.",
        f"{who} needs {draft.show(need)} {part} to make {food} for {draft.show(people)} people.",
    )
    draft.say(f"{who} cooks for {draft.show(guests)} people.", f"Today {draft.show(guests)} people will eat.")
    factor = draft.step("The recipe is made {} times.", guests, "/", people)
    value = draft.step(f"That needs {{}} {part}.", factor, "*", need)
    return Told(value, part, (f"How many {part} are needed?", f"How many {part} does {who} need?"))


PLACES = (
    ("hall", "rows", "seats"),
    ("garden", "rows", "trees"),
    ("building", "floors", "rooms"),
    ("library", "shelves", "books"),
    ("train", "cars", "seats"),
    ("school", "classes", "children"),
    ("field", "lines", "bushes"),
    ("cinema", "rows", "chairs"),
)


def _rows(draft: Draft, *, kind: str) -> Told:
    place, rows, seats = draft.pick(PLACES)
    k, m = draft.few(12), draft.group()
    draft.say(
        f"A {place} has {draft.show(k)} {rows} with {draft.show(m)} {seats} each.",
        f"In a {place} there are {draft.show(k)} {rows} of {draft.show(m)} {seats}.",
    )
    asks = (f"How many {seats} are there in the {place}?", f"How many {seats} are there in total?")
    total = draft.step(f"The {rows} have {{}} {seats}.", k, "*", m)
    if kind == "half":
        draft.say(f"Half of the {seats} are new.", f"Only half of the {seats} are new.")
        new = draft.whole(draft.step("Half of them is {}.", total, "/", 2))
        return Told(new, seats, (f"How many {seats} are new?", f"How many new {seats} are there?"))
    if kind == "two_kinds":
        k2, m2 = draft.few(), draft.few()
        draft.say(
            f"There are also {draft.show(k2)} {rows} with {draft.show(m2)} {seats} each.",
            f"Another {draft.show(k2)} {rows} have {draft.show(m2)} {seats} each.",
        )
        other = draft.step(f"The others have {{}} {seats}.", k2, "*", m2)
        total = draft.step(f"In total there are {{}} {seats}.", total, "+", other)
    return Told(total, seats, asks)


SHARES: dict[str, Scene] = {
    f"{kind}_{'rest' if rest else 'part'}": partial(_share, kind=kind, rest=rest)
    for kind, rest in product(("percent", "big_percent", "fraction"), (False, True))
}
PRICES: dict[str, Scene] = {
    f"{'up' if up else 'off'}{'_coupon' * coupon}": partial(_price, up=up, coupon=coupon)
    for up, coupon in product((False, True), (False, True))
}
LEFTOVERS: dict[str, Scene] = {
    "one_source": partial(_leftover, two_sources=False),
    "two_sources": partial(_leftover, two_sources=True),
}
RECIPES: dict[str, Scene] = {
    kind: partial(_batches, kind=kind) for kind in ("needed", "missing", "cost", "possible")
}
ROWS: dict[str, Scene] = {kind: partial(_rows, kind=kind) for kind in ("one_kind", "two_kinds", "half")}
TEMPLATES = {
    **followed("share", SHARES, "ask minus split"),
    **followed("price", PRICES, "ask plus times"),
    **followed("leftover", LEFTOVERS, "ask plus minus times"),
    **followed("recipe", RECIPES | {"guests": _guests}, "ask plus times"),
    **followed("rows", ROWS, "ask plus minus split"),
}
