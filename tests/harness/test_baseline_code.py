"""Whose code the baseline runs: found out before anything is written, proven before anything is measured."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness import baseline_code
from harness.baseline_code import VENV, WORKTREE, BaselineCode, resolve_baseline
from harness.engine_code import EngineCode, own_code, probe
from paths.api import UserError

GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@example.com")
PROJECT = '[project]\nname = "x"\ndependencies = ["numpy"]\n'


def git(folder, *words):
    subprocess.run([*GIT, "-C", str(folder), *words], check=True, capture_output=True)


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A checkout with two commits that stands for ours; only paths/worker.py is asked for."""
    folder = tmp_path / "clone"
    (folder / "paths").mkdir(parents=True)
    (folder / "conf" / "path").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "paths" / "__init__.py").write_text("")
    (folder / "paths" / "worker.py").write_text("REVISION = 1\n")
    (folder / "conf" / "path" / "old.yaml").write_text("name: old\nimpl: paths.scripted:ScriptedPath\n")
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    (folder / "paths" / "worker.py").write_text("REVISION = 2\n")
    (folder / "conf" / "path" / "old.yaml").rename(folder / "conf" / "path" / "new.yaml")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "two")
    monkeypatch.setattr(baseline_code, "checkout", lambda: folder)
    return folder


def test_the_engines_of_a_commit_import_its_worktree(clone, tmp_path):
    code = resolve_baseline(ref="HEAD~1", python=None)
    run = tmp_path / "run"
    run.mkdir()
    found = code.prepare(run)
    assert found.root == (run / WORKTREE).resolve() and found.revision == code.commit == code.revision
    said = subprocess.run(
        [found.python, "-P", "-c", "import paths.worker, numpy; print(paths.worker.REVISION)"],
        cwd=clone,
        capture_output=True,
        text=True,
        check=True,
        env={},
    ).stdout
    assert said == "1\n"
    assert code.prepare(run) == found  # again, when the run is resumed
    code.remove(run)
    assert list(run.iterdir()) == []
    listed = subprocess.run([*GIT, "-C", str(clone), "worktree", "list"], capture_output=True, text=True)
    assert len(listed.stdout.splitlines()) == 1
    code.remove(run)


def test_an_environment_that_imports_something_else_is_refused(clone, tmp_path, monkeypatch):
    monkeypatch.setattr(baseline_code, "probe", lambda python, key: own_code())
    code = resolve_baseline(ref="HEAD", python=None)
    (tmp_path / "run").mkdir()
    with pytest.raises(UserError, match="not of its worktree"):
        code.prepare(tmp_path / "run")


def test_other_dependencies_are_installed_or_refused(clone, tmp_path, monkeypatch):
    asked = []

    def run(command, *, what, timeout_s):
        asked.append(command)
        if "pip" in command:
            raise UserError(f"{what} (no network)")

    (clone / "pyproject.toml").write_text(PROJECT.replace("numpy", "numpy>=9"))
    monkeypatch.setattr(baseline_code, "_run", run)
    (tmp_path / "run").mkdir()
    with pytest.raises(UserError, match="dependencies differ"):
        resolve_baseline(ref="HEAD", python=None).prepare(tmp_path / "run")
    assert asked[0][1:3] == ["-m", "venv"] and "--without-pip" not in asked[0]
    assert asked[1][0] == str(tmp_path / "run" / VENV / "bin" / "python")


def test_paths_are_those_of_the_commit_and_the_rest_is_ours(clone):
    with resolve_baseline(ref="HEAD~1", python=None).conf() as folder:
        assert [file.name for file in (folder / "path").iterdir()] == ["old.yaml"]
        assert (folder / "config.yaml").is_file() and (folder / "tier" / "pr.yaml").is_file()
    assert not folder.exists()


@pytest.mark.parametrize("ref", ["nope", "HEAD~9", "--all", "HEAD:paths", ""])
def test_an_unknown_ref_is_one_line(ref, clone):
    with pytest.raises(UserError, match="git knows no such commit"):
        resolve_baseline(ref=ref, python=None)


def test_a_commit_of_something_else_is_refused(clone):
    git(clone, "checkout", "-q", "--orphan", "other")
    git(clone, "rm", "-rqf", ".")
    git(clone, "commit", "-q", "--allow-empty", "-m", "empty")
    with pytest.raises(UserError, match=r"no paths/worker\.py"):
        resolve_baseline(ref="HEAD", python=None)


def test_no_checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(baseline_code, "checkout", lambda: tmp_path)
    with pytest.raises(UserError, match="not a git checkout"):
        resolve_baseline(ref="HEAD", python=None)


def test_an_interpreter_without_the_package_is_refused(tmp_path):
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    with pytest.raises(UserError, match=r"cannot import paths\.worker .*ModuleNotFoundError"):
        probe(str(bare / "bin" / "python"), key="baseline_python")


@pytest.mark.parametrize(("said", "wrong"), [(None, 0), ("/a", 0), ("/b", 1)])
def test_code_from_elsewhere_is_a_mismatch(said, wrong):
    assert len(EngineCode(python="p", root=Path("/a")).mismatch(said)) == wrong


def test_our_own_code_needs_nothing(tmp_path):
    code = BaselineCode(revision="r1")
    assert code.prepare(tmp_path) is None and not code.is_foreign
    code.remove(tmp_path)


def test_a_program_that_is_no_interpreter_is_refused():
    with pytest.raises(UserError, match="does not answer as a Python interpreter"):
        probe("/bin/true", key="baseline_python")
