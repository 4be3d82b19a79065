"""Finding and ending every process of one launch, and nothing else."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import psutil

from harness.environment import LAUNCH_MARK

_LOOK_AGAIN_S = 0.02


def members(leader: int, mark: str) -> list[psutil.Process]:
    """Live processes of the group of `leader`, and descendants that left it but carry the launch's mark."""
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if process.status() != psutil.STATUS_ZOMBIE and _belongs(process, leader, mark):
                found.append(process)
    return found


def _belongs(process: psutil.Process, leader: int, mark: str) -> bool:
    if os.getpgid(process.pid) == leader:
        return True
    try:
        return process.environ().get(LAUNCH_MARK) == mark
    except psutil.AccessDenied:
        return False  # another user's process, hence not ours


def end_group(leader: int, mark: str, *, terminate_s: float = 3.0, kill_s: float = 10.0) -> list[int]:
    """SIGTERM, wait, SIGKILL, until no process of the launch is left. Returns the pids that would not die."""
    for number, patience_s in ((signal.SIGTERM, terminate_s), (signal.SIGKILL, kill_s)):
        deadline = time.monotonic() + patience_s
        while left := members(leader, mark):
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
            if time.monotonic() > deadline:
                break
            time.sleep(_LOOK_AGAIN_S)
        if not left:
            return []
    return [process.pid for process in members(leader, mark)]
