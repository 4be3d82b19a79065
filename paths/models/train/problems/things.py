"""What the problems are about: things with the containers that they come in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Thing:
    """Plural names of a thing and of its container."""

    many: str
    packs: str


_TEXT = """
apples bags|stickers packs|marbles bags|books boxes|pencils boxes|cookies trays|cards packs|shells jars
coins rolls|stamps sheets|beads strings|eggs cartons|flowers bunches|candies bags|balloons packs|toys boxes
crayons boxes|oranges crates|peaches baskets|muffins boxes|tickets books|buttons jars|stones bags|blocks sets
photos albums|badges packs|tomatoes crates|postcards sets|batteries packs|pens packs|lemons nets|pears baskets
nuts bags|cupcakes trays|magnets sets|puzzles boxes|candles boxes|bottles crates|plates stacks|socks bundles
"""
THINGS = tuple(Thing(*entry.split()) for line in _TEXT.strip().splitlines() for entry in line.split("|"))
_GOODS = """
    notebooks pens shirts hats cakes sandwiches toys books mugs plants lamps balls scarves posters pies
    brushes ropes drinks games candles bowls bags kites jars pizzas towels
"""
_ONE_GOOD = """
    bike phone guitar camera jacket tent skateboard watch keyboard drum telescope desk radio printer sofa
    chair helmet backpack violin lamp
"""
GOODS = tuple(_GOODS.split())
ONE_GOOD = tuple(_ONE_GOOD.split())
