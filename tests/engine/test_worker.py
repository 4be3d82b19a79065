"""The worker process through its real protocol, on the scripted path."""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from paths.api import EngineConfig, FinishReason, ModelSource
from tests.engine.mock import request

ROOT = Path(__file__).parents[2]
# a path package of its own: fails inside `step` as a broken pipe of the engine's own would
FAILING = """
from paths.scripted import ScriptedPath


class Failing(ScriptedPath):
    def start(self, config):
        engine = super().start(config)
        engine.step = self.fail
        engine.has_work = lambda: True
        return engine

    def fail(self):
        raise {error}
"""


@pytest.fixture
def start():
    running = []

    def _start(
        options: dict, impl: str = "paths.scripted:ScriptedPath", sys_path: tuple[str, ...] = ()
    ) -> Connection:
        ours, theirs = socket.socketpair()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "paths.worker", "--fd", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        )
        theirs.close()
        connection = Connection(ours.detach())
        running.append((process, connection))
        config = EngineConfig(
            path="scripted",
            impl=impl,
            model=ModelSource(name="none", hf_config={"vocab_size": 50}, checkpoint="dummy"),
            options=options,
        )
        connection.send(("config", config, "nonce-1", list(sys_path)))
        return connection

    yield _start
    for process, connection in running:
        connection.close()
        assert process.wait(timeout=10) is not None


def until(connection: Connection, kind: str) -> tuple:
    while True:
        assert connection.poll(30), f"no {kind} message"
        message = connection.recv()
        if message[0] == kind:
            return message


def test_script_reaches_the_client_and_the_worker_ends_with_its_parent(start):
    connection = start({"requests": [{"events": [[0, 1], [5, 3], [9, 3]], "finish": "length"}]})
    _, report, effective, nonce, pid = until(connection, "ready")
    assert (effective.path, nonce, effective.pid) == ("scripted", "nonce-1", pid)
    assert report.graphs == 0
    connection.send(("add", [request(4, [1, 2])]))
    events = [event for _ in range(3) for event in until(connection, "events")[1]]
    assert [len(e.token_ids) for e in events] == [1, 3, 3]
    assert events[-1].finish_reason is FinishReason.LENGTH
    gaps = [(b.time_ns - a.time_ns) / 1e6 for a, b in itertools.pairwise(events)]
    assert all(gap > 0 for gap in gaps)
    connection.send(("counters", 17))
    _, token, counters = until(connection, "reply")
    assert (token, counters.output_tokens) == (17, 7)


def test_bad_option_is_one_line_to_the_user(start):
    assert "unknown; scripted takes first_ms" in until(start({"frist_ms": 3}), "user_error")[1]


def test_unknown_class_is_one_line_to_the_user(start):
    message = until(start({}, impl="paths.scripted:NoSuchPath"), "user_error")[1]
    assert "no such class" in message and "ScriptedPath" in message


def test_abort_ends_a_request(start):
    connection = start({"first_ms": 60_000})
    until(connection, "ready")
    connection.send(("add", [request(1, [1])]))
    connection.send(("abort", [1]))
    (event,) = until(connection, "events")[1]
    assert (event.request_id, event.finish_reason) == (1, FinishReason.ABORT)


@pytest.mark.parametrize(
    "error", ["EOFError('of a file')", "BrokenPipeError('of a child')", "OSError('any')"]
)
def test_an_engines_own_io_error_is_a_crash_and_not_a_lost_harness(start, tmp_path, error):
    (tmp_path / "failing_path.py").write_text(FAILING.format(error=error))
    connection = start({}, impl="failing_path:Failing", sys_path=(str(tmp_path),))
    _, kind, message = until(connection, "fatal")
    name, text = error.removesuffix("')").split("('")
    assert (kind, message) == ("crash", f"{name}: {text}")


def test_progress_comes_before_ready(start):
    connection = start({})
    seen = []
    while not seen or seen[-1][0] != "ready":
        assert connection.poll(30)
        seen.append(connection.recv())
    assert [message[1] for message in seen[:-1]] == ["loading scripted (none, dummy)", "warming up"]
