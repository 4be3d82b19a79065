"""Starts one engine in a fresh process group and makes sure that nothing of it survives."""

from __future__ import annotations

import contextlib
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from harness.client.endpoint import EngineDied
from harness.client.frames import FrameSocket, SendTimeout, UnreadableFrame
from harness.client.messages import MalformedMessage, checked
from harness.client.pipe import PipeEndpoint
from harness.engine_code import EngineCode, own_code
from harness.environment import engine_environment
from harness.process_group import end_group
from harness.signals import deferred
from paths.api import Effective, EngineConfig, StartupReport, UserError

LOG_NAME = "engine.log"
COMPILED_SUFFIXES = (".so", ".cubin", ".hsaco")
_LOOK_S = 0.1
_TAIL_BYTES = 4096


def worker_command(fd: int | str, *, python: str = sys.executable) -> list[str]:
    """What starts an engine; `fd` is the inherited end of a socket pair. -P: never import from the cwd."""
    return [python, "-P", "-m", "paths.worker", "--fd", str(fd)]


@dataclass(frozen=True, kw_only=True)
class Ready:
    """A started engine."""

    endpoint: PipeEndpoint
    startup: StartupReport
    effective: Effective
    pid: int
    ready_s: float  # from spawning to ready
    compile_cache: str  # cold, warm, "partly warm", or "unused" by an engine that compiles nothing

    @property
    def cost(self) -> dict[str, Any]:
        """What start-up cost, as a record keeps it."""
        own = {"ready_s": self.ready_s, "compile_cache": self.compile_cache}
        return own | asdict(self.startup)


def compiled_files(cache_dir: Path) -> int:
    """Compiled kernels in the run's cache."""
    return sum(1 for file in cache_dir.rglob("*") if file.suffix in COMPILED_SUFFIXES)


def cache_state(compile_mode: str, *, before: int, after: int) -> str:
    """How a start found the compile cache: a warm start is another figure than a cold one."""
    if compile_mode == "none":
        return "unused"
    if before == 0:
        return "cold"
    return "warm" if after == before else "partly warm"


class ProcessesSurvived(Exception):
    """Processes of a launch would not die; measuring beside them would be worthless."""


class EngineProcess:
    """One launch. `start` it once, `close` it always (or use it as a context manager)."""

    def __init__(
        self,
        config: EngineConfig,
        *,
        folder: Path,
        cache_dir: Path,
        parent_environment: Mapping[str, str],
        sys_path: Sequence[str] = (),
        timeout_s: float,
        code: EngineCode | None = None,
    ) -> None:
        self.log = folder / LOG_NAME
        self._code = code or own_code()
        self._config = config
        self._folder = folder
        self._cache_dir = cache_dir
        self._cached_before = 0
        self._sys_path = list(sys_path)
        self._timeout_s = timeout_s
        self._nonce = secrets.token_hex(16)
        self._environment = engine_environment(
            parent_environment, threads=config.threads, cache_dir=cache_dir, launch_mark=self._nonce
        )
        if code is not None:  # it finds its code by itself
            self._environment.pop("PYTHONPATH", None)
        self._process: subprocess.Popen[bytes] | None = None
        self._frames: FrameSocket | None = None
        self._endpoint: PipeEndpoint | None = None

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # an orderly end only when nothing went wrong: an interrupted engine is in the middle of a load
        self.close(grace_s=10.0 if kind is None else 0.0)

    def start(self, on_progress: Callable[[str], None]) -> Ready:
        """Spawn and wait until the engine is ready.

        Raises EngineDied, or UserError if the engine refuses its settings.
        """
        began = time.monotonic()
        self._cached_before = compiled_files(self._cache_dir)
        with deferred():  # a process that was started is always one that `close` knows
            frames, process = self._spawn()
        deadline = began + self._timeout_s
        try:
            frames.send(("config", self._config, self._nonce, self._sys_path), self._timeout_s)
        except SendTimeout as error:
            raise EngineDied("timeout", f"the engine did not take its configuration: {error}") from error
        try:
            message = self._await_ready(frames, process, deadline, on_progress)
        except (MalformedMessage, UnreadableFrame) as error:
            raise EngineDied("crash", f"the engine sent nonsense: {error}") from error
        return self._ready(message, frames, process, time.monotonic() - began)

    def _await_ready(
        self,
        frames: FrameSocket,
        process: subprocess.Popen[bytes],
        deadline: float,
        on_progress: Callable[[str], None],
    ) -> tuple[Any, ...]:
        """The `ready` message. A child of a dead engine may hold its connection: watch its process."""
        while True:
            ended = process.poll() is not None  # before reading: what it said last is still there
            for _, said in frames.receive(0.0 if ended else _LOOK_S):
                message = checked(said)
                if message[0] == "progress":
                    on_progress(message[1])
                elif message[0] == "ready":
                    return message
                elif message[0] == "user_error":
                    raise UserError(message[1])
                elif message[0] == "fatal":
                    raise EngineDied(message[1], message[2])
            if ended or frames.closed:
                raise self._explain_end()
            if time.monotonic() > deadline:
                raise EngineDied(
                    "timeout", f"the engine was not ready within timeout_s={self._timeout_s:g} s"
                )

    def close(self, grace_s: float = 10.0) -> None:
        """Ask, wait, terminate, kill, until nothing of the launch is left. Raises ProcessesSurvived."""
        if self._process is not None:
            with deferred():
                self._end(self._process, grace_s)
            self._process = None

    def _end(self, process: subprocess.Popen[bytes], grace_s: float) -> None:
        if self._endpoint is not None and grace_s > 0:
            self._endpoint.close()
            with contextlib.suppress(subprocess.TimeoutExpired):  # then the group is ended below
                process.wait(grace_s)
        survivors = end_group(process.pid, self._nonce)
        if self._frames is not None:
            self._frames.close()
        if survivors:
            raise ProcessesSurvived(f"processes {survivors} survived SIGKILL")
        process.wait()

    def _spawn(self) -> tuple[FrameSocket, subprocess.Popen[bytes]]:
        ours, theirs = socket.socketpair()
        with self.log.open("ab") as log, theirs:
            self._process = subprocess.Popen(
                worker_command(theirs.fileno(), python=self._code.python),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                cwd=self._folder,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._frames = FrameSocket(ours)
        return self._frames, self._process

    def _ready(
        self, message: tuple[Any, ...], frames: FrameSocket, process: subprocess.Popen[bytes], ready_s: float
    ) -> Ready:
        _, startup, effective, nonce, pid = message
        if nonce != self._nonce or pid != process.pid or effective.pid != process.pid:
            raise EngineDied(
                "crash", f"process {pid} answered, but {process.pid} was started: identity not proven"
            )
        self._endpoint = PipeEndpoint(
            frames,
            startup=startup,
            timeout_s=self._timeout_s,
            explain_end=self._explain_end,
            exited=lambda: process.poll() is not None,
        )
        return Ready(
            endpoint=self._endpoint,
            startup=startup,
            effective=effective,
            pid=pid,
            ready_s=ready_s,
            compile_cache=cache_state(
                effective.compile_mode, before=self._cached_before, after=compiled_files(self._cache_dir)
            ),
        )

    def code_mismatch(self, effective: Effective) -> list[str]:
        """In words, when the engine's code is not the code of its arm; else nothing."""
        return self._code.mismatch(effective.code_root)

    def _explain_end(self) -> EngineDied:
        """Why the process went away, from its exit status and its log."""
        assert self._process is not None
        try:
            code = self._process.wait(timeout=5.0)
        except subprocess.TimeoutExpired:
            return EngineDied("crash", f"the engine closed its connection but still runs{self._last_words()}")
        if code == -signal.SIGKILL:
            return EngineDied("oom", "the engine was killed by SIGKILL, most likely because memory ran out")
        if code < 0:
            name = signal.Signals(-code).name
            return EngineDied("crash", f"the engine was ended by {name}{self._last_words()}")
        return EngineDied("crash", f"the engine exited with code {code}{self._last_words()}")

    def _last_words(self) -> str:
        """The last line of the log, for the reason; the whole log is in the run folder."""
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode("utf-8", errors="replace").strip().splitlines()
        return f"; last line of its log: {lines[-1][:300]}" if lines else ""
