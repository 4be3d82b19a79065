"""What start-up is doing, for whoever listens. Imports nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_listener: ContextVar[Callable[[str], None] | None] = ContextVar("progress listener", default=None)


def say(text: str) -> None:
    """One line about something slow that begins now."""
    listener = _listener.get()
    if listener is not None:
        listener(text)


@contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Inside this context `listener` is given every line."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
