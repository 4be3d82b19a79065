"""Interruption that cleans up: SIGTERM and SIGHUP act like Ctrl-C, once, and wait while something is written.

The first signal raises KeyboardInterrupt, at once or at the end of a `deferred` block. Further ones change
nothing: what follows the first is the clean-up, and that must come to its end.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class _State:
    """Of this process; signals have no smaller scope. Only the main thread touches it."""

    installed: bool = False
    deferring: bool = False
    heard: bool = False
    raised: bool = False


_state = _State()


def _receive(_number: int, _frame: FrameType | None) -> None:
    """Not SIG_IGN: an ignored signal stays ignored in every process that is started meanwhile."""
    _state.heard = True
    _raise_if_due()


def _raise_if_due() -> None:
    if _state.heard and not _state.raised and not _state.deferring:
        _state.raised = True
        raise KeyboardInterrupt


@contextmanager
def interruptible() -> Iterator[None]:
    """Within: the first SIGINT, SIGTERM or SIGHUP raises KeyboardInterrupt in the main thread."""
    if _state.installed:
        yield
        return
    _state.installed, _state.deferring, _state.heard, _state.raised = True, False, False, False
    before = {number: signal.signal(number, _receive) for number in _STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _state.installed = False


@contextmanager
def deferred() -> Iterator[None]:
    """Within: a signal waits; KeyboardInterrupt is raised when the outermost such block is left."""
    with interruptible():
        before, _state.deferring = _state.deferring, True
        try:
            yield
        finally:
            _state.deferring = before
            _raise_if_due()


@contextmanager
def shielded() -> Iterator[None]:
    """Within: a signal waits; one that still waits at the end is dropped, for the work is done."""
    with interruptible():
        before, _state.deferring = _state.deferring, True
        try:
            yield
        finally:
            _state.raised = _state.raised or _state.heard
            _state.deferring = before


@contextmanager
def allowed() -> Iterator[None]:
    """Within, inside a `deferred` or `shielded` block: a signal raises at once, also one that waits."""
    before, _state.deferring = _state.deferring, False
    try:
        _raise_if_due()
        yield
    finally:
        _state.deferring = before
