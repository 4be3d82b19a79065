"""Starts the process that runs lm-eval and serves it the engine, which stays the harness's own."""

from __future__ import annotations

import contextlib
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from harness.accuracy.spec import Job, Prepared
from harness.client.endpoint import Endpoint, EngineDied
from harness.client.frames import FrameSocket, SendTimeout, UnreadableFrame
from harness.client.load import GRACE_S
from harness.environment import LAUNCH_MARK, child_environment
from harness.process_group import end_group
from harness.signals import deferred
from paths.api import FinishReason, UserError

LOG_NAME = "accuracy.log"
_LOOK_S = 0.05
_LOOK_BESIDE_ENGINE_S = 0.005
_END_S = 10.0
_TAIL_BYTES = 4096
# where the hub is and what was fetched from it; of use only to a task that is not here
_HUB = (
    "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE",
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
)  # fmt: skip


class ScoringFailed(Exception):
    """The scoring process ended, hung or broke the protocol; the engine is not to blame."""


def require_lm_eval() -> None:
    """Raises UserError where it is not installed. Does not import it."""
    if find_spec("lm_eval") is None:
        raise UserError(
            "accuracy: lm-evaluation-harness is not installed; pip install '.[eval]' in a clone of the"
            " harness, or leave accuracy out"
        )


def prepare(job: Job, parent_environment: Mapping[str, str]) -> list[Prepared]:
    """Build all prompts in a process of its own and describe them. Raises UserError."""
    with tempfile.TemporaryDirectory(prefix="harness-accuracy-") as place:
        try:
            with ScoringProcess(job, folder=Path(place), parent_environment=parent_environment) as process:
                return [message[1] for message in process.messages() if message[0] == "prepared"]
        except ScoringFailed as error:
            raise UserError(f"accuracy: the prompts cannot be built: {error}") from error


class ScoringProcess:
    """One child. A context manager; nothing of it survives."""

    def __init__(self, job: Job, *, folder: Path, parent_environment: Mapping[str, str]) -> None:
        self.log = folder / LOG_NAME
        self._job = job
        self._folder = folder
        self._nonce = secrets.token_hex(16)
        self._environment = scoring_environment(
            parent_environment, offline=job.spec.offline, launch_mark=self._nonce
        )
        self._frames: FrameSocket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> ScoringProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is None or self._frames is None:
            return
        with deferred():
            if kind is None:
                with contextlib.suppress(subprocess.TimeoutExpired):  # then it is ended below
                    self._process.wait(_END_S)
            survivors = end_group(self._process.pid, self._nonce)
            self._frames.close()
            if survivors:
                raise ScoringFailed(f"processes {survivors} of lm-eval survived SIGKILL")
            self._process.wait()

    def _spawn(self) -> tuple[FrameSocket, subprocess.Popen[bytes]]:
        ours, theirs = socket.socketpair()
        with self.log.open("ab") as log, theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "harness.accuracy.child", "--fd", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                cwd=self._folder,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        return FrameSocket(ours), process

    def messages(self, endpoint: Endpoint | None = None) -> Iterator[tuple[Any, ...]]:
        """What the child reports until it is done; meanwhile its requests go to `endpoint`.

        Raises UserError for a mistake that it found, ScoringFailed when it fails, EngineDied when the engine
        does. After the first two the engine is idle again.
        """
        with deferred():  # a process that was started is always one that is ended
            self._frames, self._process = self._spawn()
        relay = Relay(endpoint, self._send, grace_s=min(GRACE_S, self._job.timeout_s))
        try:
            self._send(("job", self._job))
            yield from self._relayed(relay)
        except (UserError, ScoringFailed):
            relay.settle()
            raise

    def _relayed(self, relay: Relay) -> Iterator[tuple[Any, ...]]:
        heard = time.monotonic()
        while True:
            ended = self._exit_code() is not None  # before reading: what it said last is still there
            said = self._receive(0.0 if relay.running or ended else _LOOK_S)
            for message in said:
                if message[0] == "done":
                    return
                self._raise_if_last(message)
                if not relay.handle(message):
                    yield message
            moved = relay.pass_on()
            if ended and not said:
                raise ScoringFailed(f"its process ended with code {self._exit_code()}{self._last_words()}")
            if said or moved or relay.running:
                heard = time.monotonic()
            elif time.monotonic() - heard > self._job.timeout_s:
                raise ScoringFailed(f"lm-eval was silent for {self._job.timeout_s:g} s")

    def _raise_if_last(self, message: tuple[Any, ...]) -> None:
        if message[0] == "user_error":
            raise UserError(str(message[1]))
        if message[0] == "fatal":
            raise ScoringFailed(f"lm-eval failed: {message[1]}")

    def _receive(self, timeout_s: float) -> list[tuple[Any, ...]]:
        assert self._frames is not None
        try:
            return [message for _, message in self._frames.receive(timeout_s)]
        except UnreadableFrame as error:
            raise ScoringFailed(f"the scoring process sent an unreadable message: {error}") from error

    def _send(self, message: object) -> None:
        assert self._frames is not None
        try:
            self._frames.send(message, self._job.timeout_s)
        except SendTimeout as error:
            raise ScoringFailed(f"the scoring process hangs: {error}") from error

    def _exit_code(self) -> int | None:
        assert self._process is not None
        return self._process.poll()

    def _last_words(self) -> str:
        text = self.log.read_bytes()[-_TAIL_BYTES:].decode("utf-8", errors="replace")
        lines = text.strip().splitlines()
        return f"; last line of its log: {lines[-1][:300]}" if lines else ""


class Relay:
    """Passes a child's requests to the engine and the engine's events back."""

    def __init__(
        self, endpoint: Endpoint | None, send: Callable[[object], None], *, grace_s: float = GRACE_S
    ) -> None:
        self._endpoint, self._send, self._grace_s = endpoint, send, grace_s
        self.running: set[int] = set()

    def handle(self, message: tuple[Any, ...]) -> bool:
        """Do what a message asks of the engine; False for one that is meant for the harness."""
        endpoint, verb = self._endpoint, message[0]
        if endpoint is None or verb not in ("add", "abort", "counters", "effective"):
            return False
        if verb == "add":
            self.running.update(request.request_id for request in message[1])
            endpoint.submit(message[1])
        elif verb == "abort":
            endpoint.abort(message[1])
        else:
            self._send(("reply", message[1], getattr(endpoint, verb)()))
        return True

    def pass_on(self) -> bool:
        """Events that have arrived, each step as it is. Raises EngineDied."""
        if self._endpoint is None:
            return False
        arrived = self._endpoint.poll(_LOOK_BESIDE_ENGINE_S if self.running else 0.0)
        for _, events in arrived:
            ended = events.request_ids[events.finish != FinishReason.NONE]
            self.running.difference_update(np.asarray(ended).tolist())
            self._send(("events", events))
        return bool(arrived)

    def settle(self) -> None:
        """Give up what still runs, so that the engine is idle for whoever comes next.

        Raises EngineDied for one that does not end what was given up.
        """
        if self._endpoint is None or not self.running:
            return
        self._endpoint.abort(sorted(self.running))
        until = time.monotonic() + self._grace_s
        while self.running:
            if time.monotonic() > until:
                raise EngineDied(
                    "timeout",
                    f"engine hangs: it does not end {len(self.running)} requests that were given up",
                )
            for _, events in self._endpoint.poll(_LOOK_S):
                ended = events.request_ids[events.finish != FinishReason.NONE]
                self.running.difference_update(np.asarray(ended).tolist())


def scoring_environment(parent: Mapping[str, str], *, offline: bool, launch_mark: str) -> dict[str, str]:
    """The whole environment of the scoring process; with all questions here the hub does not exist for it."""
    own = {LAUNCH_MARK: launch_mark, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    own |= {"TQDM_DISABLE": "1"}  # the harness shows the progress
    if offline:
        return child_environment(parent) | own | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    hub = {name: parent[name] for name in _HUB if name in parent}
    return child_environment(parent) | hub | own
