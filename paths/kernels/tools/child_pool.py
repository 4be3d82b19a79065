"""Children that answer one JSON line per request; one that dies of a request is started again."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any


class Died(Exception):
    """The child ended without an answer."""


def ask_all(
    module: str,
    requests: Sequence[Mapping[str, Any]],
    *,
    env: Mapping[str, str],
    jobs: int,
    done: Callable[[Mapping[str, Any]], None] = lambda request: None,
) -> list[Any]:
    """Answers in the order of `requests`, each a JSON value or `Died`; `jobs` processes of `module` at once.

    `env` is added to this process's environment. `done` is called from threads as answers come.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for i in range(len(requests)):
        waiting.put(i)
    answers: list[Any] = [None] * len(requests)

    def work() -> None:
        with _Child(module, env) as child:
            while True:
                try:
                    i = waiting.get_nowait()
                except queue.Empty:
                    return
                try:
                    answers[i] = child.ask(requests[i])
                except Died as death:
                    answers[i] = death
                done(requests[i])

    threads = [threading.Thread(target=work) for _ in range(min(jobs, len(requests)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def answer_all(answer: Callable[[dict[str, Any]], Any]) -> None:
    """The child's side: stdin to stdout until stdin ends."""
    answers, sys.stdout = sys.stdout, sys.stderr  # what a kernel or a compiler prints is not an answer
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


class _Child:
    def __init__(self, module: str, env: Mapping[str, str]) -> None:
        # -W ignore: the interpreter computes with numpy, which warns of every NaN
        self._command = [sys.executable, "-W", "ignore", "-m", module]
        self._env = {**os.environ, "OMP_NUM_THREADS": "1", **env}
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            _pipe(self._process.stdin).close()
            self._process.wait()

    def ask(self, request: Mapping[str, Any]) -> Any:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, env=self._env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        try:
            _pipe(self._process.stdin).write(json.dumps(request) + "\n")
            _pipe(self._process.stdin).flush()
            answer = _pipe(self._process.stdout).readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            code = self._process.wait()
            self._process = None
            raise Died(f"the process ended with code {code}")
        return json.loads(answer)


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None, "both ends are piped"
    return pipe
