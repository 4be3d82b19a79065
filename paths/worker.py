"""The process that hosts one built-in engine and talks to the harness over an inherited socket.

    python -P -m paths.worker --fd 5        (started by harness.launch, never by hand)

Messages are pickled tuples. In: config, add, abort, counters, effective, close.
Out: progress, ready, events, reply, and one of user_error or fatal before an early end.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import os
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from paths import registry
from paths.api import Effective, Engine, EngineConfig, UserError
from paths.engine.delay import delayed
from paths.lifeline import tie_to_peer
from paths.progress import listening

EXIT_USER_ERROR = 2
EXIT_FATAL = 3
CODE_ROOT = str(Path(__file__).resolve().parent.parent)


class _HarnessGone(Exception):
    """The other end of the connection is closed: nobody is left to serve or to tell."""


class _Peer:
    """The connection, whose loss is told apart from an engine's own EOFError or BrokenPipeError."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def send(self, message: tuple[Any, ...]) -> None:
        payload = ForkingPickler.dumps(message)  # here: what cannot be pickled is the engine's mistake
        try:
            self._connection.send_bytes(payload)
        except OSError as error:
            raise _HarnessGone(str(error)) from error

    def receive(self) -> Any:
        try:
            return self._connection.recv()
        except (EOFError, OSError) as error:
            raise _HarnessGone(str(error)) from error

    def poll(self, timeout_s: float | None) -> bool:
        try:
            return self._connection.poll(timeout_s)
        except OSError as error:
            raise _HarnessGone(str(error)) from error


def main() -> int:
    parser = argparse.ArgumentParser(prog="paths.worker")
    parser.add_argument("--fd", type=int, required=True)
    connection = Connection(parser.parse_args().fd)
    tie_to_peer(connection.fileno())
    peer = _Peer(connection)
    try:
        return _host(peer)
    except _HarnessGone:
        return 0
    except UserError as error:
        _send_last(peer, ("user_error", str(error)))
        return EXIT_USER_ERROR
    except Exception as error:  # noqa: BLE001 - the process boundary: whatever happened becomes one failed row
        traceback.print_exc()
        kind = "oom" if _is_out_of_memory(error) else "crash"
        _send_last(peer, ("fatal", kind, f"{type(error).__name__}: {_in_one_line(error)}"))
        return EXIT_FATAL


def _host(connection: _Peer) -> int:
    """Start the engine that the first message describes and serve it until `close`."""
    _, config, nonce, sys_path = connection.receive()
    assert isinstance(config, EngineConfig)
    connection.send(("progress", f"loading {config.path} ({config.model.name}, {config.model.checkpoint})"))
    with listening(lambda text: connection.send(("progress", text))):
        engine = delayed(registry.load(config.impl, sys_path).start(config), config)
        connection.send(("progress", "warming up"))
        report = engine.warm_up()
    # start-up objects live as long as the process: keep the collector from walking them between steps
    gc.collect()
    gc.freeze()
    connection.send(("ready", report, _effective(engine), nonce, os.getpid()))
    _serve(connection, engine)
    engine.close()
    return 0


def _serve(connection: _Peer, engine: Engine) -> None:
    while True:
        while connection.poll(0 if engine.has_work() else None):
            message = connection.receive()
            if message[0] == "close":
                return
            _handle(connection, engine, message)
        events = engine.step()
        if len(events):
            connection.send(("events", events))


def _handle(connection: _Peer, engine: Engine, message: tuple[Any, ...]) -> None:
    verb = message[0]
    if verb == "add":
        for request in message[1]:
            try:
                engine.add(request)
            except UserError as error:
                engine.refuse(request.request_id, str(error))
    elif verb == "abort":
        for request_id in message[1]:
            engine.abort(request_id)
    else:
        answers: dict[str, Callable[[], object]] = {
            "counters": engine.counters,
            "effective": lambda: _effective(engine),
        }
        connection.send(("reply", message[1], answers[verb]()))


def _effective(engine: Engine) -> Effective:
    """The engine's own words, and where its code lies: the proof of whose code ran."""
    effective = engine.effective()
    if not isinstance(effective, Effective):
        return effective  # the harness says what is wrong with it
    return dataclasses.replace(effective, code_root=CODE_ROOT)


def _send_last(connection: _Peer, message: tuple[Any, ...]) -> None:
    try:
        connection.send(message)
    except _HarnessGone:
        print(f"worker: the harness is gone; last message was {message}", file=sys.stderr)


def _is_out_of_memory(error: Exception) -> bool:
    """MemoryError, torch.OutOfMemoryError, or a RuntimeError of torch's allocators."""
    words = ("not enough memory", "can't allocate memory", "CUDA error: out of memory")
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or any(text in str(error) for text in words)
    )


def _in_one_line(error: Exception) -> str:
    """First and last line of a message: wrappers say what failed first and why last."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
    return " … ".join(dict.fromkeys([lines[0], lines[-1]]))[:500]


if __name__ == "__main__":
    sys.exit(main())
