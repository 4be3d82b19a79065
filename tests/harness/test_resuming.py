"""`resume=RUN_ID`: what cannot go on is said in one line, before anything is changed."""

import pytest

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


@pytest.mark.parametrize("text", [b"{: [", b"\xff\xfe"])
def test_a_damaged_configuration_is_named(text, tmp_path):
    cell = make_cell(Composer(), ("+path=scripted",), revision="r")
    file = tmp_path / "cells" / cell.folder / "config.yaml"
    file.parent.mkdir(parents=True)
    file.write_bytes(text)
    with pytest.raises(UserError, match=r"config\.yaml cannot be read"):
        _config_changes(tmp_path, cell.folder, cell)
