"""`baseline_rev` and `baseline_python`: the baseline runs the code of a commit, or an installed one.

A commit gets a worktree and a virtual environment of its own in the run's folder, both removed at its end.
The environment names the worktree before the packages that this interpreter has, so nothing needs PYTHONPATH
and nothing is installed unless the dependencies of the two revisions differ.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.composition import packaged_conf
from harness.console import err
from harness.engine_code import EngineCode, own_code, probe
from harness.environment import code_revision
from harness.errors import one_line
from paths.api import UserError

WORKTREE, VENV = "baseline_code", "baseline_env"
_GIT_S, _INSTALL_S = 300, 3600
_PTH = "baseline_code.pth"


@dataclass(frozen=True, kw_only=True)
class BaselineCode:
    """Resolved before anything is written. `commit` and `installed` None: the harness's own code."""

    revision: str
    ref: str | None = None
    commit: str | None = None
    installed: EngineCode | None = None

    @property
    def is_foreign(self) -> bool:
        return self.commit is not None or self.installed is not None

    @property
    def python(self) -> str | None:
        return self.installed.python if self.installed is not None else None

    @contextmanager
    def conf(self) -> Iterator[Path]:
        """The configuration that the baseline is composed from: ours, with the paths of its revision.

        Raises UserError when that revision has none.
        """
        if not self.is_foreign:
            yield packaged_conf()
            return
        with tempfile.TemporaryDirectory(prefix="harness-conf-") as name:
            folder = Path(name) / "conf"
            shutil.copytree(packaged_conf(), folder, ignore=shutil.ignore_patterns("path", "__pycache__"))
            if self.installed is not None:
                source = self.installed.root / "conf" / "path"
                if not source.is_dir():
                    raise UserError(f"baseline_python={self.python}: {source} is missing; reinstall it there")
                shutil.copytree(source, folder / "path")
            else:
                self._extract("conf/path", Path(name))
            yield folder

    def prepare(self, run_folder: Path) -> EngineCode | None:
        """Where the baseline's engines find their code; None: where all do. Raises UserError."""
        if self.commit is None:
            return self.installed
        self.remove(run_folder)
        tree, venv = run_folder / WORKTREE, run_folder / VENV
        _git_or_refuse("worktree", "add", "--detach", "--quiet", str(tree), self.commit, what=self._said)
        python = self._environment(tree, venv)
        found = probe(python, key="baseline_rev")
        if found.root != tree.resolve():
            raise UserError(
                f"{self._said}: its environment imports the code of {found.root}, not of its worktree;"
                " give an environment with baseline_python=PATH"
            )
        return EngineCode(python=python, root=found.root, revision=self.revision)

    def remove(self, run_folder: Path) -> None:
        """Worktree and environment, if there are any; a worktree that git no longer knows is pruned."""
        tree = run_folder / WORKTREE
        if self.commit is None:
            return
        shutil.rmtree(run_folder / VENV, ignore_errors=True)
        if tree.exists():
            _git("worktree", "remove", "--force", "--force", str(tree))
            shutil.rmtree(tree, ignore_errors=True)
        _git("worktree", "prune")

    @property
    def _said(self) -> str:
        return f"baseline_rev={self.ref}"

    def _extract(self, inside: str, target: Path) -> None:
        """A folder of the commit. Raises UserError when it has no such folder."""
        assert self.commit is not None
        done = _git("archive", "--format=tar", self.commit, "--", inside)
        if done.returncode != 0:
            raise UserError(f"{self._said}: that commit has no {inside}; give one of this harness")
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            archive.extractall(target, filter="data")

    def _environment(self, tree: Path, venv: Path) -> str:
        """The interpreter of a new environment in which the worktree comes first. Raises UserError."""
        changed = _dependencies(tree / "pyproject.toml") != _dependencies(checkout() / "pyproject.toml")
        pip = [] if changed else ["--without-pip"]
        _run([sys.executable, "-m", "venv", *pip, str(venv)], what=self._said, timeout_s=_GIT_S)
        python = str(venv / "bin" / "python")
        if changed:
            err.print("the baseline has other dependencies; installing them", markup=False)
            _run(
                [python, "-m", "pip", "install", "--quiet", "-e", str(tree)],
                what=f"{self._said}: its dependencies differ from ours and cannot be installed; prepare an"
                " environment and give baseline_python=PATH",
                timeout_s=_INSTALL_S,
            )
            return python
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        places = [
            str(tree),
            *(path for path in sys.path if path.endswith(("site-packages", "dist-packages"))),
        ]
        # plain lines: what is listed is searched, but no .pth file in it obeyed: no other checkout of ours
        (venv / "lib" / version / "site-packages" / _PTH).write_text(
            "\n".join(places) + "\n", encoding="utf-8"
        )
        return python


def resolve_baseline(*, ref: str | None, python: str | None) -> BaselineCode:
    """Raises UserError in one line, with nothing written."""
    if python is not None:
        found = probe(str(Path(python).expanduser()), key="baseline_python")
        return BaselineCode(revision=found.revision or "unknown", installed=found)
    if ref is None:
        return BaselineCode(revision=code_revision())
    root = checkout()
    if not (root / ".git").exists():
        raise UserError(
            f"baseline_rev={ref}: {root} is not a git checkout; run from a clone, or give an installed"
            " baseline with baseline_python=PATH"
        )
    done = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    commit = done.stdout.decode().strip()
    if done.returncode != 0 or not commit:
        said = one_line(done.stderr.decode(errors="replace"))
        raise UserError(
            f"baseline_rev={ref}: git knows no such commit{f' ({said})' if said else ''};"
            " give a branch, tag or hash of this clone (a shallow clone lacks history: git fetch --unshallow)"
        )
    if _git("cat-file", "-e", f"{commit}:paths/worker.py").returncode != 0:
        raise UserError(f"baseline_rev={ref}: that commit has no paths/worker.py; give one of this harness")
    return BaselineCode(revision=commit, ref=ref, commit=commit)


def checkout() -> Path:
    """The folder that this harness runs from."""
    return own_code().root


def _dependencies(file: Path) -> Any:
    """What decides which packages an environment needs; None where there is no such file."""
    try:
        project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
    except (OSError, tomllib.TOMLDecodeError):
        return None
    return [project.get("requires-python"), sorted(project.get("dependencies", []))]


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    """No hook of the clone runs: it could change what is checked out."""
    command = ["git", "-C", str(checkout()), "-c", "core.hooksPath=/dev/null", *arguments]
    try:
        return subprocess.run(
            command, capture_output=True, timeout=_GIT_S, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"baseline_rev needs git, which cannot be run here ({error})") from error


def _git_or_refuse(*arguments: str, what: str) -> None:
    done = _git(*arguments)
    if done.returncode != 0:
        raise UserError(
            f"{what}: git {arguments[0]} failed ({one_line(done.stderr.decode(errors='replace'))})"
        )


def _run(command: list[str], *, what: str, timeout_s: float) -> None:
    """Raises UserError with the last line that the command said."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{what}: {Path(command[0]).name} {command[2]} failed ({one_line(error)})") from error
    if done.returncode != 0:
        last = ((done.stderr or done.stdout).strip().splitlines() or ["no message"])[-1]
        raise UserError(f"{what} ({one_line(last)})")
