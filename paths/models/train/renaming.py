"""Invented names in training problems, so that a name is copied letter by letter and not remembered.

A model that has read two hundred names a thousand times each completes "Ma" to one of them, and fails on the
names of the test set. The generator and its distribution stay as they are: names are replaced behind it.
"""

from __future__ import annotations

import random
import re
from dataclasses import replace

from paths.models.train.problems.names import PEOPLE, TRAIN_PEOPLE
from paths.models.train.problems.stream import Problem

_NAME = re.compile(rf"\b({'|'.join(person.name for person in TRAIN_PEOPLE)})\b")
_TAKEN = frozenset(person.name for person in PEOPLE)
_VOWELS = (*"aaaeeeiiioou", "ai", "ee", "ia", "oa", "ie", "y")
_ONSETS = (*"bcdfghjklmnprstvwyz", "br", "ch", "cl", "dr", "fl", "gr", "kr", "pr", "sh", "st", "th", "tr")
_CODAS = (*"lnrstdmkxb", "th", "ck", "nn", "ll", "ss")


def with_invented_names(problem: Problem, rng: random.Random) -> Problem:
    """The problem with each of its names replaced by an invented one, none of which is a real name here."""
    chosen: dict[str, str] = {}

    def of(found: re.Match[str]) -> str:
        name = found[0]
        while name not in chosen:
            invented = _invented(rng)
            if invented not in chosen.values():
                chosen[name] = invented
        return chosen[name]

    return replace(problem, question=_NAME.sub(of, problem.question), answer=_NAME.sub(of, problem.answer))


def _invented(rng: random.Random) -> str:
    """One to three syllables, three to nine letters."""
    while True:
        name = "".join(
            (rng.choice(_ONSETS) if number or rng.random() < 0.75 else "")
            + rng.choice(_VOWELS)
            + (rng.choice(_CODAS) if rng.random() < 0.35 else "")
            for number in range(rng.randint(1, 3))
        ).capitalize()
        if 3 <= len(name) <= 9 and name not in _TAKEN:
            return name
