"""Drafts that are made after the tokens of their step were handed out."""

from __future__ import annotations

from collections.abc import Callable, Collection

from paths.engine.scheduler import IntArray


class PostponedDrafts:
    """Of one step: made before anything of the next one changes, or never where all its requests left.

    Where only some left, keys are still written into their pages: whoever gets these writes them again first.
    """

    def __init__(self) -> None:
        self._propose: Callable[[], None] | None = None
        self._slots: list[int] = []

    def postpone(self, slots: IntArray, propose: Callable[[], None]) -> None:
        """slots `[R]` of the step."""
        self._slots, self._propose = slots.tolist(), propose

    def make(self, released: Collection[int] = ()) -> None:
        """Unless every slot of the step is among those released since, or there is nothing to make."""
        propose, self._propose = self._propose, None
        if propose is not None and not set(self._slots) <= set(released):
            propose()
