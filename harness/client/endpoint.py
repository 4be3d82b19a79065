"""What the harness drives: one interface for a built-in engine behind a pipe and, later, for HTTP servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from paths.api import Counters, Effective, Request, StartupReport, StepEvents


class EngineDied(Exception):
    """The engine ended, hung or ran out of memory. `kind` is "crash", "timeout" or "oom"."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


class Endpoint(Protocol):
    """Submit requests, read token events. Not thread-safe: one owner drives it."""

    startup: StartupReport

    def submit(self, requests: Sequence[Request]) -> None:
        """Send requests. They are queued by the engine at once. Raises EngineDied."""

    def poll(self, timeout_s: float) -> list[tuple[int, StepEvents]]:
        """Everything that arrived, each with the perf_counter_ns at which the client read it.

        Waits at most `timeout_s` for the first frame (0: do not wait), then drains what is there.
        Raises EngineDied.
        """

    def abort(self, request_ids: Sequence[int]) -> None: ...

    def counters(self) -> Counters:
        """A snapshot. Token events that arrive meanwhile are kept, with their times, for `poll`."""

    def effective(self) -> Effective: ...

    def close(self) -> None:
        """Ask the engine to end. Never raises; killing it is the launcher's business."""
