"""The distribution of the problems as a Markdown text, and the hash that pins it."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice

from paths.models.train.problems.names import TEST_PEOPLE, TRAIN_PEOPLE
from paths.models.train.problems.stream import (
    FAMILIES,
    TEMPLATES,
    TEST,
    TRAIN,
    Problem,
    problems,
    templates,
    test_set,
)

SAMPLE_SEED, SAMPLE_COUNT = 0, 5000
SIZES = ((0, 20), (20, 100), (100, 200), (200, 1000), (1000, 10000))


def canonical_sample() -> list[Problem]:
    """The first problems of training stream 0."""
    return list(islice(problems(TRAIN, seed=SAMPLE_SEED), SAMPLE_COUNT))


def json_lines(chosen: Iterable[Problem]) -> str:
    """One `{"question", "answer"}` a line."""
    return "".join(json.dumps({"question": p.question, "answer": p.answer}) + "\n" for p in chosen)


def sha256(chosen: Iterable[Problem]) -> str:
    """Of the JSON lines."""
    return hashlib.sha256(json_lines(chosen).encode()).hexdigest()


def describe() -> str:
    """Tables of both splits, with what was held out and the hashes of the canonical samples."""
    train, test = canonical_sample(), test_set()
    menus = {split: templates(split) for split in (TRAIN, TEST)}
    parts = [
        f"{len(TEMPLATES)} templates; a fifth of them, and {len(TEST_PEOPLE)} of "
        f"{len(TRAIN_PEOPLE) + len(TEST_PEOPLE)} names, stand in the test set only. Measured on the first "
        f"{SAMPLE_COUNT} problems of training stream {SAMPLE_SEED} and on the {len(test)} test problems.",
        "| SHA-256 of the JSON lines | |\n|---|---|\n"
        f"| training sample | `{sha256(train)}` |\n| test set | `{sha256(test)}` |",
        _table("family", _families(menus), header=("weight", "train templates", "test templates")),
        _table("share of problems", _shares(train, test), header=("train", "test")),
        "Held-out names: " + ", ".join(person.name for person in TEST_PEOPLE) + ".",
        "Held-out templates:\n\n"
        + "\n".join(f"- {name}: {_members(members)}" for name, members in menus[TEST].items()),
    ]
    return "\n\n".join(parts) + "\n"


def _members(members: Sequence[str]) -> str:
    return ", ".join(member.split(".", 1)[1].replace("_then_", ">") for member in members)


def _families(menus: dict[str, dict[str, list[str]]]) -> dict[str, list[str]]:
    return {
        name: [str(weight), *(str(len(menus[split].get(name, ()))) for split in (TRAIN, TEST))]
        for name, weight in FAMILIES.items()
    }


def _shares(train: Sequence[Problem], test: Sequence[Problem]) -> dict[str, list[str]]:
    columns = [_measures(chosen) for chosen in (train, test)]
    return {name: [f"{column[name]:.1%}" for column in columns] for name in columns[0]}


def _measures(chosen: Sequence[Problem]) -> dict[str, float]:
    steps = Counter(len(p.steps) for p in chosen)
    values = [value for p in chosen for step in p.steps for value in (step.left, step.right, step.result)]
    found = {f"{n} step{'s' * (n > 1)}": steps[n] / len(chosen) for n in sorted(steps)}
    for low, high in SIZES:
        found[f"quantities from {low} to below {high}"] = sum(low <= v < high for v in values) / len(values)
    found["quantities with decimals"] = sum(v != v.to_integral_value() for v in values) / len(values)
    found["answer with decimals"] = sum("." in p.value for p in chosen) / len(chosen)
    found["money in the question"] = sum("$" in p.question for p in chosen) / len(chosen)
    found["an irrelevant number"] = sum(p.distracted for p in chosen) / len(chosen)
    for name, operator in (("sum", "+"), ("difference", "-"), ("product", "*"), ("quotient", "/")):
        all_steps = [step for p in chosen for step in p.steps]
        found[f"steps that are a {name}"] = sum(s.operator == operator for s in all_steps) / len(all_steps)
    return found


def _table(title: str, rows: dict[str, list[str]], *, header: Sequence[str]) -> str:
    lines = [f"| {title} | {' | '.join(header)} |", "|---" * (len(header) + 1) + "|"]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()]
    return "\n".join(lines)
