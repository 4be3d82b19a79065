"""Standard streams that nobody reads, that are closed, or that cannot show every character."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import IO


def silence(stream: IO[str]) -> None:
    """Send what is still written to `stream` nowhere, also what Python flushes when it ends."""
    with contextlib.suppress(OSError, ValueError):  # no file behind it: then nothing is flushed either
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def mend_streams() -> None:
    """Closed streams go nowhere; characters that a terminal cannot show become question marks."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
