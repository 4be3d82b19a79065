"""Whose code an engine runs: the harness's own, a commit's, or an installed one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import paths
from harness.errors import one_line
from paths.api import UserError

_PROBE = """
import sys
from pathlib import Path
import paths.worker
print(Path(paths.worker.__file__).resolve().parent.parent)
print(".".join(map(str, sys.version_info[:3])))
try:
    from harness.environment import code_revision
    print(code_revision())
except Exception as error:  # an old version may have no such function
    print(f"unknown ({type(error).__name__})")
"""
_PROBE_S = 120


@dataclass(frozen=True, kw_only=True)
class EngineCode:
    """An interpreter and the folder that it must import `paths` from."""

    python: str
    root: Path
    revision: str | None = None

    def mismatch(self, said: str | None) -> list[str]:
        """`said`: where the engine says that its code lies; None from an old revision that does not say.

        Then the interpreter was asked before the run, see `probe`.
        """
        if said is None or Path(said) == self.root:
            return []
        return [f"code of {said}, its arm is {self.root}"]


def own_code() -> EngineCode:
    return EngineCode(python=sys.executable, root=Path(next(iter(paths.__path__))).resolve().parent)


def probe(python: str, *, key: str) -> EngineCode:
    """What `python -P` imports as `paths`, without PYTHONPATH, as the worker will. Raises UserError."""
    try:
        done = run_quietly([python, "-P", "-c", _PROBE], timeout_s=_PROBE_S)
    except OSError as error:
        raise UserError(f"{key}={python}: cannot be started ({error.strerror})") from error
    except subprocess.TimeoutExpired as error:
        raise UserError(f"{key}={python}: no answer within {_PROBE_S} s") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(
            f"{key}={python}: it cannot import paths.worker ({one_line(last)}); install the package there"
        )
    said = done.stdout.strip().splitlines()[-3:]
    if len(said) != 3:
        raise UserError(f"{key}={python}: does not answer as a Python interpreter; give the path of one")
    root, _, revision = said
    return EngineCode(python=python, root=Path(root), revision=revision)


def run_quietly(command: Sequence[str], *, timeout_s: float) -> subprocess.CompletedProcess[str]:
    """A child with an environment of its own choice: none of ours that changes what Python imports."""
    import os

    from harness.environment import child_environment

    environment = child_environment(os.environ)
    environment.pop("PYTHONPATH", None)
    return subprocess.run(
        list(command),
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=timeout_s,
        check=False,
        env=environment,
        stdin=subprocess.DEVNULL,
    )
