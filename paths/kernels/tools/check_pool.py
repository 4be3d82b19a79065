"""Runs the checks of many ops in a few child processes, and survives a kernel that kills its process."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO

from paths.kernels.tools.check import Row


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to check of every op."""

    implementations: Sequence[str]
    slow: bool
    seed: int
    device: str

    def line(self, op: str) -> str:
        fields = {"implementations": list(self.implementations), "slow": self.slow, "seed": self.seed}
        return json.dumps({"op": op, "device": self.device, **fields}) + "\n"


def check_all(
    ops: Sequence[str], request: Request, *, jobs: int, done: Callable[[str], None] = lambda op: None
) -> list[Row]:
    """Rows of all ops, in their order. `done` is called in this process's threads as ops finish."""
    waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
    for op in ops:
        waiting.put(op)
    answers: dict[str, list[Row]] = {}

    def work() -> None:
        with _Child(request) as child:
            while True:
                try:
                    op = waiting.get_nowait()
                except queue.Empty:
                    return
                answers[op] = child.check(op)
                done(op)

    threads = [threading.Thread(target=work) for _ in range(min(jobs, len(ops)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [row for op in ops for row in answers[op]]


class _Child:
    """One process, started again when it dies."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._pipe(self._process.stdin).close()
            self._process.wait()

    def check(self, op: str) -> list[Row]:
        process = self._process or _start(self._request.device)
        self._process = process
        try:
            self._pipe(process.stdin).write(self._request.line(op))
            self._pipe(process.stdin).flush()
            answer = self._pipe(process.stdout).readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self._process = None
            note = f"the process died with code {process.wait()}"
            return [Row(op, "-", "", state="fail", note=note)]
        return [Row(**fields) for fields in json.loads(answer)]

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None, "both ends are piped"
        return pipe


def _start(device: str) -> subprocess.Popen[str]:
    env = {**os.environ, "TRITON_INTERPRET": "1" if device == "cpu" else "0", "OMP_NUM_THREADS": "1"}
    # -W ignore: the interpreter computes with numpy, which warns of every NaN that a case contains
    command = [sys.executable, "-W", "ignore", "-m", "paths.kernels.tools.check_child"]
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
