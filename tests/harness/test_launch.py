"""Starting and ending engines: identity, readiness, and what is left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from harness.client.endpoint import EngineDied
from harness.environment import LAUNCH_MARK
from harness.launch import EngineProcess, cache_state, compiled_files
from harness.process_group import end_group, members
from paths.api import UserError
from tests.harness.cells import make_cells

FAULTY = Path(__file__).parent.parent / "fixtures" / "faulty_paths"


@pytest.fixture
def launch(tmp_path):
    """Makes engine processes and makes sure that none is left."""
    made = []

    def make(*options, timeout_s=30.0, environment=None):
        (cell,) = make_cells("+path=faulty", *options, config_dirs=(FAULTY,))
        engine = EngineProcess(
            cell.engine,
            folder=tmp_path,
            cache_dir=tmp_path,
            parent_environment=os.environ if environment is None else environment,
            sys_path=[str(FAULTY)],
            timeout_s=timeout_s,
        )
        made.append(engine)
        return engine

    yield make
    for engine in made:
        engine.close(grace_s=0)


def alive(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_ready_engine_is_the_one_that_was_started(launch):
    engine, said = launch("path.options.fault=none"), []
    ready = engine.start(said.append)
    assert alive(ready.pid) and ready.effective.pid == ready.pid
    assert os.getpgid(ready.pid) == os.getsid(ready.pid) == ready.pid != os.getpgid(0)
    assert said[0].startswith("loading faulty")
    assert ready.endpoint.counters().decode_tokens == 0
    engine.close()
    assert not alive(ready.pid)
    engine.close()  # again: nothing to do


def test_engine_inherits_no_ignored_signal(launch):
    """An ignored SIGTERM survives exec, and would make every engine end the hard way."""
    ready = launch("path.options.fault=none").start(lambda _: None)
    status = Path(f"/proc/{ready.pid}/status").read_text()
    (ignored,) = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigIgn:")]
    for number in (signal.SIGTERM, signal.SIGHUP):
        assert not ignored & 1 << (number - 1)


def test_an_answer_with_another_nonce_is_refused(launch, monkeypatch):
    """Known fault 043: an old server answers, and its numbers are taken for the new one's."""
    engine = launch("path.options.fault=none")
    original = engine._ready
    monkeypatch.setattr(
        engine, "_ready", lambda message, *rest: original((*message[:3], "stale nonce", message[4]), *rest)
    )
    with pytest.raises(EngineDied, match="identity not proven"):
        engine.start(lambda _: None)


def test_another_process_that_answers_is_refused(launch, monkeypatch):
    engine = launch("path.options.fault=none")
    original = engine._ready
    monkeypatch.setattr(engine, "_ready", lambda message, *rest: original((*message[:4], os.getpid()), *rest))
    with pytest.raises(EngineDied, match="identity not proven"):
        engine.start(lambda _: None)


def test_refused_settings_are_the_users_mistake(launch):
    with pytest.raises(UserError, match="copy the checkpoint again"):
        launch("path.options.fault=refuse").start(lambda _: None)


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        ("raise", "crash", "RuntimeError: injected"),
        ("exit", "crash", "code 7; last line of its log: injected: last words"),
        ("kill", "oom", "SIGKILL"),
        ("memory", "oom", "MemoryError"),
        ("hang", "timeout", "not ready within timeout_s=1.5 s"),
    ],
)
def test_kinds_of_death_at_start_up(launch, fault, kind, words):
    engine = launch(f"path.options.fault={fault}", timeout_s=1.5 if fault == "hang" else 30)
    with pytest.raises(EngineDied) as caught:
        engine.start(lambda _: None)
    assert caught.value.kind == kind and words in caught.value.reason


def test_signal_of_a_killed_engine_is_named(launch):
    engine = launch("path.options.fault=none")
    ready = engine.start(lambda _: None)
    os.kill(ready.pid, signal.SIGSEGV)
    with pytest.raises(EngineDied, match="SIGSEGV"):
        for _ in range(100):
            ready.endpoint.poll(0.1)


def test_no_descendant_is_left_even_one_that_left_the_group(launch):
    """Known fault 045: workers survive their parent."""
    engine = launch("path.options.fault=sleepers_and_stay")
    ready = engine.start(lambda _: None)
    children = psutil.Process(ready.pid).children(recursive=True)
    assert len(children) == 2 and len({os.getpgid(child.pid) for child in children}) == 2
    engine.close()
    assert not any(alive(child.pid) for child in children)
    assert not alive(ready.pid)


def test_ending_a_group_touches_nobody_else():
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    mine = subprocess.Popen(sleeper, start_new_session=True, env={**os.environ, LAUNCH_MARK: "mine"})
    other = subprocess.Popen(sleeper, start_new_session=True, env={**os.environ, LAUNCH_MARK: "other"})
    try:
        while not members(mine.pid, "mine"):
            time.sleep(0.01)
        assert end_group(mine.pid, "mine") == []
        assert mine.wait(5) == -signal.SIGTERM
        assert other.poll() is None
        assert os.getpid() not in [process.pid for process in members(os.getpgid(0), "other")]
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize(
    ("mode", "before", "after", "state"),
    [
        ("inductor-piecewise", 0, 40, "cold"),
        ("inductor-piecewise", 40, 40, "warm"),
        ("inductor-piecewise", 40, 41, "partly warm"),
        ("none", 40, 40, "unused"),
        ("none", 0, 0, "unused"),
    ],
)
def test_a_warm_start_is_told_from_a_cold_one(mode, before, after, state):
    assert cache_state(mode, before=before, after=after) == state


def test_compiled_kernels_are_counted_and_sources_are_not(tmp_path):
    assert compiled_files(tmp_path / "not there yet") == 0
    folder = tmp_path / "inductor" / "ab"
    folder.mkdir(parents=True)
    for name in ("a.so", "b.cubin", "c.hsaco", "d.py", "e.lock"):
        (folder / name).touch()
    assert compiled_files(tmp_path) == 3
