"""cmd=report: report.html of a kept run or comparison, once more."""

from __future__ import annotations

import pytest

from harness.__main__ import main
from tests.reports.conftest import make_record, parse_page, write_run
from tests.reports.verdict_page.judged import compared_folder


def title(folder):
    return (
        parse_page((folder / "report.html").read_text().removeprefix("<!doctype html>")).all("title")[0].text
    )


def test_a_run_and_a_comparison_have_their_own_pages(tmp_path, capsys):
    run = write_run(tmp_path / "run-1", [make_record(0)])
    assert main(["cmd=report", f"run={run}"]) == 0
    assert capsys.readouterr().out.strip() == str(run / "report.html")
    assert title(run) == "Run run-1"
    both = compared_folder(tmp_path / "run-2", loads=(1,), factor=lambda load: 1.3)
    assert main(["cmd=report", f"run={both}"]) == 0  # rebuilding is no gate
    assert title(both) == "FAIL: dsa_mrv2 against generic_mrv1"
    (both / "report.html").unlink()
    assert main(["cmd=compare", f"run={both}"]) == 1
    assert title(both) == "FAIL: dsa_mrv2 against generic_mrv1"


def test_a_comparison_that_cannot_be_judged_is_shown_as_a_run(tmp_path, capsys):
    both = compared_folder(tmp_path / "run-1", loads=(1,))
    (both / "comparison.json").write_text("{")
    assert main(["cmd=report", f"run={both}"]) == 0
    assert "the comparison cannot be judged" in (both / "report.html").read_text()
    shown = capsys.readouterr()
    assert "the comparison cannot be judged" in shown.err and "restore the file" in shown.err
    assert shown.out.strip() == str(both / "report.html")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cmd=report"], "cmd=report needs run=DIR"),
        (["cmd=report", "run=nowhere"], "no such folder"),
        (["cmd=report", "run=.", "concurrency=1"], "not a key of cmd=report"),
        (["cmd=report", "run=."], "is this a run folder?"),
    ],
)
def test_mistakes_are_said_in_a_line(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert said in capsys.readouterr().err
