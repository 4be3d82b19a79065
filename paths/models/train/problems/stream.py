"""Problems by index: the training stream without end, and the held-out test set."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from itertools import count

from paths.models.train.problems import chains, comparisons, distractors, measures, portions, rates, shopping
from paths.models.train.problems.draft import Draft, Retry, Step, Template
from paths.models.train.problems.names import TEST_PEOPLE, TRAIN_PEOPLE
from paths.models.train.problems.split import held_out

TEMPLATES: dict[str, Template] = {
    **chains.TEMPLATES,
    **comparisons.TEMPLATES,
    **shopping.TEMPLATES,
    **rates.TEMPLATES,
    **portions.TEMPLATES,
    **measures.TEMPLATES,
}
# how often a family is drawn; within one, every template is as likely as any other
FAMILIES = {
    "chain": 28,
    "compare": 14,
    "age": 4,
    "shopping": 16,
    "profit": 3,
    "rate": 9,
    "saving": 4,
    "share": 5,
    "price": 3,
    "leftover": 2,
    "recipe": 4,
    "rows": 4,
    "time": 4,
    "measure": 4,
    "trip": 3,
}
# long problems have far more templates than short ones: how many of each length are kept
KEPT = {1: 1.0, 2: 0.8, 3: 0.5, 4: 0.36}
TRAIN, TEST = "train", "test"
SPLITS = (TRAIN, TEST)
TEST_SEED, TEST_COUNT = 20_000, 500


@dataclass(frozen=True)
class Problem:
    """A question and its worked answer, which ends with `#### N`."""

    template: str
    question: str
    answer: str
    value: str
    steps: tuple[Step, ...]
    distracted: bool
    scale: str

    @property
    def family(self) -> str:
        return family(self.template)


def family(template: str) -> str:
    return template.split(".")[0]


def templates(split: str) -> dict[str, list[str]]:
    """The split's template names by family."""
    found: dict[str, list[str]] = {name: [] for name in FAMILIES}
    for template in TEMPLATES:
        if held_out("template", template) == (split == TEST):
            found[family(template)].append(template)
    return {name: members for name, members in found.items() if members}


_MENUS = {split: templates(split) for split in SPLITS}
_PEOPLE = {TRAIN: TRAIN_PEOPLE, TEST: TEST_PEOPLE}


def problem(split: str, *, seed: int, index: int) -> Problem:
    """Number `index` of the stream, which depends on nothing but these three."""
    digest = hashlib.sha256(f"{split}/{seed}/{index}".encode()).digest()
    rng = random.Random(int.from_bytes(digest[:16], "big"))
    menu = _MENUS[split]
    while True:
        chosen = rng.choices(list(menu), [FAMILIES[name] for name in menu])[0]
        found = _attempt(rng.choice(menu[chosen]), rng, split)
        if rng.random() < KEPT[len(found.steps)]:
            return found


def _attempt(template: str, rng: random.Random, split: str) -> Problem:
    """Draw until the template makes sense."""
    while True:
        try:
            return _write(template, Draft(rng, _PEOPLE[split]))
        except Retry:
            continue


def problems(split: str, *, seed: int, start: int = 0) -> Iterator[Problem]:
    """The stream from `start` on."""
    for index in count(start):
        yield problem(split, seed=seed, index=index)


def test_set(number: int = TEST_COUNT) -> list[Problem]:
    """The problems to be scored: held-out templates and names, no question twice."""
    found: dict[str, Problem] = {}
    for candidate in problems(TEST, seed=TEST_SEED):
        found.setdefault(candidate.question, candidate)
        if len(found) == number:
            break
    return list(found.values())


def _write(template: str, draft: Draft) -> Problem:
    value: Decimal = TEMPLATES[template](draft)
    if value != draft.steps[-1].result:
        raise AssertionError(f"{template}: the answer {value} is not the last step's result")
    distracted = draft.chance(distractors.SHARE)
    if distracted:
        distractors.distract(draft, draft.somebody())
    shown = draft.show(value)
    lines = [*(step.text for step in draft.steps), f"#### {shown}"]
    question = " ".join(sentence[0].upper() + sentence[1:] for sentence in draft.sentences)
    return Problem(
        template=template,
        question=question,
        answer="\n".join(lines),
        value=shown,
        steps=tuple(draft.steps),
        distracted=distracted,
        scale=draft.scale,
    )
