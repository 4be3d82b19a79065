"""`resume=RUN_ID`: what cannot go on is said in one line, before anything is changed."""

import pytest

from harness.__main__ import main
from harness.composition import Composer
from harness.records import RunInfo
from harness.resuming import _config_changes, resume_run
from harness.selection import make_cell
from paths.api import UserError

INFO = RunInfo(
    run_id="20260101-000000-aaaa", command="python -m harness", started_at="2026-01-01T00:00:00+00:00",
    harness_version="0", environment={}, plan=[],
)  # fmt: skip


def test_a_copied_run_does_not_go_on(tmp_path):
    folder = tmp_path / "copy"
    folder.mkdir()
    (folder / "run.json").write_text(INFO.model_dump_json())
    with pytest.raises(UserError, match="holds the run 20260101-000000-aaaa"):
        resume_run("copy", out_dir=str(tmp_path), planned={})
    assert [file.name for file in folder.iterdir()] == ["run.json"]


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("run.json", "not valid JSON"),
        ("records.jsonl", "line 1: not valid JSON"),
        ("requests.parquet", "cannot be read"),
        ("accuracy.parquet", "cannot be read"),
    ],
)
@pytest.mark.parametrize("arms", [(), ("baseline=scripted",)])
def test_damage_is_one_line_before_the_plan(file, said, arms, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.resuming.code_revision", lambda: "r")
    monkeypatch.setattr("harness.resuming._changes", lambda *_: None)
    folder = tmp_path / "results" / INFO.run_id
    folder.mkdir(parents=True)
    words = ("+path=scripted", "concurrency=1", *arms)
    info = INFO.model_copy(update={"command": " ".join(("python -m harness", *words))})
    (folder / "run.json").write_text(info.model_dump_json())
    (folder / file).write_text("garbage\n")
    before = {one.name for one in folder.iterdir()}
    for _ in range(2):  # the first refusal leaves the run to the second
        assert main([f"resume={INFO.run_id}"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"harness: resume={INFO.run_id}: ") and file in line
        assert said in line and line.endswith("; start a new run")
    assert {one.name for one in folder.iterdir()} == before


@pytest.mark.parametrize("text", [b"{: [", b"\xff\xfe"])
def test_a_damaged_configuration_is_named(text, tmp_path):
    cell = make_cell(Composer(), ("+path=scripted",), revision="r")
    file = tmp_path / "cells" / cell.folder / "config.yaml"
    file.parent.mkdir(parents=True)
    file.write_bytes(text)
    with pytest.raises(UserError, match=r"config\.yaml cannot be read"):
        _config_changes(tmp_path, cell.folder, cell)
