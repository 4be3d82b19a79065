"""Runs a piece of a test in a child process under Triton's interpreter, a mode fixed at Triton's import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def interpret(code: str, timeout: int = 240) -> subprocess.CompletedProcess[str]:
    """Run Python `code`; its working directory is the repository, so that `tests` can be imported."""
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def assert_passes(code: str) -> None:
    done = interpret(code)
    assert done.returncode == 0, done.stdout + done.stderr
