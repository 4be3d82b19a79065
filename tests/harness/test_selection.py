"""`+path=auto` in the command line: composed to the chosen path, said in the record, in sweeps too."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from harness import console
from harness.headlines import notes
from harness.plan import build_plan
from harness.recording import Outcome, Recorder
from harness.records import CellState
from paths.api import Platform, UserError
from tests.command_line import FAULTY
from tests.harness.cells import make_cells

H100 = Platform(device="cuda", capability=(9, 0), compiler=True, python_headers=True)


def cells(*words, **settings):
    return make_cells(*words, **settings)


def test_auto_is_the_chosen_path_in_every_identity():
    auto, named = (cells(f"+path={name}", "concurrency=4")[0] for name in ("auto", "generic_mrv1"))
    assert (auto.cell_id, auto.arm_id, auto.engine) == (named.cell_id, named.arm_id, named.engine)
    assert auto.label == named.label and auto.config.path == named.config.path
    assert (auto.chosen.requested, auto.chosen.chosen) == ("auto", "generic_mrv1") and named.chosen is None
    assert auto.command([]) == named.command([])


def test_platform_and_option_decide():
    (gpu,) = cells("+path=auto", platform=H100)
    assert gpu.engine.path == "dsa_mrv2" and "sm_90 is untested" in gpu.chosen.warnings[0]
    (asked,) = cells("+path=auto", "path.options.dsa=true")
    assert asked.engine.path == "dsa_mrv2" and "dsa" not in asked.engine.options
    (out,) = cells("+path=auto", "path.options.dsa=false", platform=H100)
    assert out.engine.path == "generic_mrv1"


def test_other_options_are_those_of_the_chosen_path():
    (cell,) = cells("path.options.graphs=none", "+path=auto", "isl=7")
    assert cell.engine.path == "generic_mrv1" and cell.engine.options["graphs"] == "none" and cell.isl == 7
    with pytest.raises(UserError, match=r"unknown key path.options.grahps; did you mean path.options.graphs"):
        cells("+path=auto", "path.options.grahps=none")


def test_sweeps_and_users_folders():
    swept = cells("+path=auto,liar", "model=tiny_v32,tiny_glm", "kv_dtype=auto,fp8", config_dirs=[FAULTY])
    assert [cell.engine.path for cell in swept] == ["generic_mrv1"] * 4 + ["scripted"] * 4
    assert all((cell.chosen is None) == (cell.engine.path == "scripted") for cell in swept)


def test_auto_beside_the_path_that_it_takes_is_one_cell():
    launches, duplicates = build_plan(cells("+path=auto,generic_mrv1"))
    assert (len(launches), duplicates) == (1, 1)


@pytest.mark.parametrize("value", ["1", "yes", "dsa_mrv2"])
def test_the_option_is_true_false_or_null(value):
    with pytest.raises(UserError, match=f"path.options.dsa={value}: not allowed; allowed: true, false, null"):
        cells("+path=auto", f"path.options.dsa={value}")


def test_the_record_says_what_was_asked_what_was_taken_and_why():
    (cell,) = cells("+path=auto", platform=H100)
    launches, _ = build_plan([cell])
    record = Recorder(run_id="r", config_dirs=[]).record(
        Outcome(state=CellState.OK),
        launch=launches[0],
        launch_id="L000",
        cell=cell,
        started_at="",
        ready=None,
        log=None,
    )
    assert record.requested["path"] == "dsa_mrv2"
    assert record.chosen.model_dump()["requested"] == "auto"
    said = notes(record)
    assert said[0].startswith("path auto took dsa_mrv2: CUDA takes fused kernels")
    assert any(note.startswith("warning: sm_90 is untested") for note in said)


def test_the_plan_says_what_was_taken_and_warns(monkeypatch):
    """Once however many cells, before anything is started; the commands name the path that was taken."""
    said, commands = StringIO(), StringIO()
    monkeypatch.setattr(console, "err", Console(file=said, width=300))
    monkeypatch.setattr(console, "out", Console(file=commands, width=300))
    launches, duplicates = build_plan(cells("+path=auto", "concurrency=1,2", platform=H100))
    console.print_plan(launches, duplicates)
    console.print_commands(launches, [])
    assert said.getvalue().count("note: path auto took dsa_mrv2: CUDA takes fused kernels") == 1
    assert said.getvalue().count("warning: sm_90 is untested") == 1
    assert "python -m harness +path=dsa_mrv2 concurrency=2" in commands.getvalue()
