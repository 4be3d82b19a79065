"""Interruption that cleans up: SIGTERM and SIGHUP act like Ctrl-C, and clean-up itself is not interrupted."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[None]:
    """Within: SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt in the main thread."""
    before = {number: signal.signal(number, _interrupt) for number in _STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _overhear(_number: int, _frame: FrameType | None) -> None:
    """Not SIG_IGN: an ignored signal stays ignored in every process that is started meanwhile."""


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Within: a further Ctrl-C does nothing, so that no process and no file is left half-way."""
    handlers = {number: signal.signal(number, _overhear) for number in _STOPPING}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
