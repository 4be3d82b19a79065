"""What the documents say is true: commands run, files exist, every module has its sentence."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import ExitCode
from harness.records import CellState
from reports.load import load_run
from reports.tables import EXIT_WORDS

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "docs/structures.md", "docs/performance.md")
]


def fences(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


COMMANDS = [
    command
    for block in fences("bash")
    for line in block.splitlines()
    if (command := shlex.join(shlex.split(line, comments=True)))
]
MAKE = [command for command in COMMANDS if command.startswith("make ")]
OWN = [command for command in COMMANDS if command.startswith("python -m harness")]


@pytest.fixture
def folder(tmp_path):
    """An empty folder with the files that the README shows, each named in its first line."""
    for block in fences("yaml") + fences("python"):
        name = re.match(r"# (\S+)\n", block)
        assert name, f"a code block without a file name: {block[:60]!r}"
        (tmp_path / name[1]).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name[1]).write_text(block)
    return tmp_path


def test_every_command_is_of_a_kind_that_is_tested():
    assert [command for command in COMMANDS if command in MAKE or command in OWN] == COMMANDS
    assert MAKE == ["make bench", "make test"] and len(OWN) >= 5


@pytest.mark.parametrize("command", OWN)
def test_command_runs(folder, command):
    words = [sys.executable, *shlex.split(command)[1:]]
    done = subprocess.run(
        words,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    runs = list((folder / "results").glob("*")) if (folder / "results").exists() else []
    assert bool(runs) == ("measure_s" in command)
    for run in runs:
        data = load_run(run)
        assert {record.state for record in data.records} == {"OK"} and data.warnings == []
        assert data.records[0].statuses == {"ok": data.records[0].statuses["ok"]}
        assert (run / "report.html").exists()


# The two long commands are checked to be what they claim; running them would take minutes, or be the suite
# itself. The job of `make bench` is planned here, and runs, smaller, in test_packaging.py.
@pytest.mark.parametrize(
    ("target", "recipe"),
    [
        ("bench", "python -m harness +path=dsa_mrv2 concurrency=1,1024"),
        ("test", 'python -m pytest --numprocesses 2 --dist loadfile -m "not slow"'),
    ],
)
def test_make_target_is_its_command(target, recipe):
    shown = subprocess.run(
        ["make", "-n", target], cwd=ROOT, text=True, capture_output=True, check=True
    ).stdout
    assert [line for line in shown.splitlines() if line.endswith(recipe)]


def test_the_job_of_make_bench_is_planned(tmp_path):
    command = [sys.executable, "-m", "harness", "+path=dsa_mrv2", "concurrency=1,1024", "dry_run=true"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())


def test_make_explains_itself():
    shown = subprocess.run(["make"], cwd=ROOT, text=True, capture_output=True, check=True).stdout
    targets = re.findall(r"^([a-z-]+): .*##", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert {"help", "install", "bench", "test", "test-slow", "test-report", "lint", "clean"} == set(targets)
    for target in targets:
        assert f"make {target}" in shown


def test_exit_codes_and_states_are_those_of_the_code():
    assert set(EXIT_WORDS) == {int(code) for code in ExitCode}
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", README, flags=re.MULTILINE)}
    assert codes and codes | {1, 3, 4} == set(EXIT_WORDS)
    section = README.split("## The report")[1].split("## Keys")[0]
    states = {
        word
        for row in re.findall(r"^\| `.*", section, flags=re.M)
        for word in re.findall(r"`([A-Z_]+)`", row)
    }
    assert states == {state.value for state in CellState}


def test_every_key_is_one_of_the_configuration():
    section = README.split("## Keys")[1].split("## ")[0]
    keys = [
        key
        for row in re.findall(r"^\| (`.*?) \|", section, flags=re.M)
        for key in re.findall(r"`(\w+)`", row)
    ]
    known = set(re.findall(r"^(\w+):", (ROOT / "conf" / "config.yaml").read_text(), flags=re.M))
    known |= {"path", "model", "workload", "experiment", "tier"}  # the groups
    assert len(keys) > 15 and set(keys) <= known


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_mentioned_files_exist(document):
    text = document.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)\)", text)
    # a path in backticks that starts at one of our folders
    tops = "harness|paths|reports|conf|tests|benchmarks|docs"
    quoted = re.findall(rf"`((?:{tops})/[\w./-]*|[\w-]+\.(?:toml|txt|md)|\.ci/run)`", text)
    assert links or quoted
    missing = [name for name in links if not (document.parent / name).exists()]
    missing += [name for name in quoted if not (ROOT / name).exists()]
    assert not missing


def test_every_module_has_its_sentence():
    """docs/structures.md names each module once; the files of one kernel op share a line of their folder."""
    text = (ROOT / "docs" / "structures.md").read_text(encoding="utf-8")
    named = re.findall(r"^\| `([\w./]+)` \|", text, flags=re.MULTILINE)
    modules = set()
    for top in ("harness", "paths", "reports"):
        for file in (ROOT / top).rglob("*.py"):
            if file.name == "__init__.py":
                continue
            name = file.relative_to(ROOT).as_posix()
            op = re.match(r"(paths/(?:\w+/)?kernels/\w+/)", name)
            modules.add(op[1] if op else name)
    assert len(named) == len(set(named))
    assert (modules - set(named), set(named) - modules) == (set(), set()), "(without a sentence, gone)"
