"""Sentences with a number that the solution does not need."""

from __future__ import annotations

from paths.models.train.problems.draft import Draft

SHARE = 0.16


def distract(draft: Draft, name: str) -> None:
    """Put one behind the first sentence or before the last, which asks."""
    number = draft.show(draft.between(2, 60))
    sentence = draft.pick(
        (
            f"{name} is {number} years old.",
            f"The walk there took {number} minutes.",
            f"It was {number} degrees outside.",
            f"{name} lives at number {number}.",
            f"There were {number} people on the bus.",
            f"{name} has had this hobby for {number} months.",
            f"A trip to the city takes {number} minutes.",
            f"The school has {number} teachers.",
            f"{name} slept for {number} minutes after lunch.",
            f"The room has {number} lamps.",
            f"{name} also read {number} pages of a book.",
            f"A friend of {name} has {number} fish.",
        )
    )
    where = 1 if draft.chance(0.5) else len(draft.sentences) - 1
    draft.sentences.insert(max(where, 1), sentence)
