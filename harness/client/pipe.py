"""The Endpoint of a built-in engine: messages over a socket pair to its worker process."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from harness.client.endpoint import EngineDied
from harness.client.frames import FrameSocket, SendTimeout, UnreadableFrame
from harness.client.messages import MalformedMessage, checked
from paths.api import Counters, Effective, FinishReason, Request, StartupReport, StepEvents

_Answer = TypeVar("_Answer", Counters, Effective)


class PipeEndpoint:
    """Drives one worker. `explain_end` says why the worker went away, once it has.

    `exited`: whether its process has ended; a child of it may still hold the connection open.
    """

    def __init__(
        self,
        frames: FrameSocket,
        *,
        startup: StartupReport,
        timeout_s: float,
        explain_end: Callable[[], EngineDied],
        exited: Callable[[], bool] = lambda: False,
    ) -> None:
        self.startup = startup
        self._frames = frames
        self._timeout_s = timeout_s
        self._explain_end = explain_end
        self._exited = exited
        self._events: deque[tuple[int, StepEvents]] = deque()
        self._replies: dict[int, Any] = {}
        self._token = 0
        self._outstanding = 0  # requests without their last event
        self._last_sign_of_life = time.monotonic()
        self._death: EngineDied | None = None

    def submit(self, requests: Sequence[Request]) -> None:
        """Send requests; they are queued by the engine at once. Raises EngineDied."""
        if not requests:
            return
        if not self._outstanding:
            self._last_sign_of_life = time.monotonic()
        self._outstanding += len(requests)
        self._send(("add", list(requests)))

    def poll(self, timeout_s: float) -> list[tuple[int, StepEvents]]:
        """Everything that arrived, each with its read time. Raises EngineDied, also for a hung engine."""
        if not self._events:
            self._collect(timeout_s)
        else:
            self._collect(0.0)
        arrived = list(self._events)
        self._events.clear()
        if not arrived:
            self._raise_if_dead()
            self._raise_if_hung()
        return arrived

    def abort(self, request_ids: Sequence[int]) -> None:
        if request_ids:
            self._send(("abort", [int(request_id) for request_id in request_ids]))

    def counters(self) -> Counters:
        """A snapshot; events that arrive meanwhile are kept, with their times, for `poll`."""
        return self._ask("counters", Counters)

    def effective(self) -> Effective:
        return self._ask("effective", Effective)

    def close(self) -> None:
        """Ask the engine to end. Never raises; killing it is the launcher's business."""
        with contextlib.suppress(SendTimeout, OSError):  # hung or closed: the launcher kills it
            self._frames.send(("close",), timeout_s=1.0)

    def _ask(self, what: str, kind: type[_Answer]) -> _Answer:
        self._token += 1
        token = self._token
        self._send((what, token))
        deadline = time.monotonic() + self._timeout_s
        while token not in self._replies:
            self._collect(min(1.0, self._timeout_s))
            if token not in self._replies:
                self._raise_if_dead()
                if time.monotonic() > deadline:
                    raise EngineDied("timeout", f"the engine did not answer {what} for {self._timeout_s:g} s")
        answer = self._replies.pop(token)
        if not isinstance(answer, kind):
            raise EngineDied(
                "crash", f"the engine answered {what} with {type(answer).__name__} {repr(answer)[:60]}"
            )
        return answer

    def _send(self, message: object) -> None:
        self._raise_if_dead()
        try:
            self._frames.send(message, self._timeout_s)
        except SendTimeout as error:
            raise EngineDied("timeout", f"the engine hangs: {error}") from error

    def _collect(self, timeout_s: float) -> None:
        """Read what is there and sort it into events, replies and the announcement of an end."""
        if self._death is not None:
            return
        try:
            messages = self._frames.receive(timeout_s)
            if not messages and self._exited():
                messages = self._frames.receive(0.0)  # what it said between the two looks
                self._death = None if messages else self._explain_end()
            for time_ns, message in messages:
                self._sort(time_ns, checked(message))
        except (MalformedMessage, UnreadableFrame) as error:
            self._death = EngineDied("crash", f"the engine sent nonsense: {error}")
        if self._frames.closed and self._death is None:
            self._death = self._explain_end()

    def _sort(self, time_ns: int, message: tuple[Any, ...]) -> None:
        kind = message[0]
        if kind == "events":
            self._events.append((time_ns, message[1]))
            self._outstanding -= int(np.count_nonzero(message[1].finish != FinishReason.NONE))
            self._last_sign_of_life = time.monotonic()
        elif kind == "reply":
            self._replies[message[1]] = message[2]
        elif kind == "fatal":
            self._death = EngineDied(message[1], message[2])
        elif kind == "user_error":
            self._death = EngineDied("crash", message[1])

    def _raise_if_dead(self) -> None:
        if self._death is not None:
            raise EngineDied(self._death.kind, self._death.reason)

    def _raise_if_hung(self) -> None:
        silent_s = time.monotonic() - self._last_sign_of_life
        if self._outstanding > 0 and silent_s > self._timeout_s:
            raise EngineDied(
                "timeout",
                f"no event for {silent_s:.1f} s with {self._outstanding} requests outstanding"
                f" (timeout_s={self._timeout_s:g})",
            )
