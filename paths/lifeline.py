"""Ties a worker to the harness: when the harness is gone, so is everything that the worker started."""

from __future__ import annotations

import os
import select
import signal
import threading
import time

_GRACE_S = 2.0  # a worker that is not stuck sees the end of its connection and leaves by itself


def tie_to_peer(fd: int) -> None:
    """Watch the socket `fd` from a thread; once its other end is closed, end the whole process group."""
    threading.Thread(target=_watch, args=(fd,), name="lifeline", daemon=True).start()


def _watch(fd: int) -> None:
    poller = select.poll()
    poller.register(fd, select.POLLRDHUP)
    poller.poll()
    time.sleep(_GRACE_S)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
