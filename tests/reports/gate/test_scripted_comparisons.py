"""Comparisons end to end on the scripted path: a busy machine may see nothing, never the wrong thing."""

import importlib.util
import sys
from pathlib import Path

import pytest

from tests.command_line import environment

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "scripted_comparisons.py"
UNDECIDED = ("INCONCLUSIVE", "INVALID")


@pytest.fixture(scope="module")
def script():
    specification = importlib.util.spec_from_file_location("scripted_comparisons", SCRIPT)
    module = importlib.util.module_from_spec(specification)
    patch = pytest.MonkeyPatch()
    patch.setitem(sys.modules, specification.name, module)  # dataclasses look their module up
    specification.loader.exec_module(module)
    yield module
    patch.undo()


def test_each_case_has_one_right_answer(script):
    right = {case.name: case.verdicts for case in script.CASES}
    assert right["5 % slower"] == ("FAIL",) and "FAIL" not in right["the same"] + right["10 % faster"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_verdict_is_the_wrong_one(script, tmp_path, monkeypatch):
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    script.harness(tmp_path, "cmd=aa", "baseline=scripted", script.BASELINE, *script.LOAD)
    for case in script.CASES:
        fits, rows = script.compare(tmp_path, case)
        whole = rows[0].rsplit("|", 2)[1]
        assert fits or any(word in whole for word in UNDECIDED), rows
