"""Runs a piece of a test in a child process under Triton's interpreter, a mode fixed at Triton's import."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

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


def quick_ones(names: Iterable[str], *quick: str) -> list[Any]:
    """Parameters of a test: these of `names` in the default run, all others in the slow one."""
    assert set(quick) <= set(names)
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]


def assert_passes(code: str) -> None:
    done = interpret(code)
    assert done.returncode == 0, done.stdout + done.stderr
