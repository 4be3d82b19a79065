"""Accuracy on the page, in the notes and in the table of a run."""

import pytest

from harness.accuracy.score_table import print_scores
from harness.headlines import notes
from reports.accuracy_section import accuracy_section
from reports.html import render
from reports.load import load_run
from reports.tables import DASH
from tests.accuracy.test_score import row, score
from tests.reports.conftest import make_record, parse_page, write_run

SPEC = {"tasks": ["arith_gsm"], "shots": 5, "limit": None, "test_file": None, "train_file": None}


def scored(order=0, *, scores, **requested):
    asked = {"accuracy": SPEC, "mtp": 0, "mtp_forced_al": None} | requested
    return make_record(order, requested=asked, accuracy=[one.model_dump() for one in scores])


@pytest.fixture
def page(tmp_path):
    def make(*records):
        data = load_run(write_run(tmp_path / "run-1", list(records)))
        return accuracy_section(data), parse_page(render(data))

    return make


def test_scores_stand_on_the_page_with_intervals(page):
    drafted = row(verifications=4, drafted=12, accepted=8, first_accepted=3)
    section, document = page(
        scored(0, scores=[score([row()] * 9 + [row("wrong")])]),
        scored(1, scores=[score([drafted] * 19 + [row("unparsable")])], path="generic_mrv1", mtp=3),
    )
    text = document.by_id("accuracy").text
    assert "arith_gsm 5-shot c64" in text and "0.900 0.596 … 0.982" in text
    assert "generic_mrv1 tiny_v32 mtp=3" in text and "0.750 0.634 … 0.839, n 76" in text
    assert [one.unparsable for one in section.rows] == ["0", "1"] and section.drafts
    assert len(document.by_id("accuracy").all("tr")) == 3


def test_what_is_wrong_with_a_score_is_said(page):
    cut = score([row()] * 3 + [row("truncated")] * 3)
    failed = score([row("error")] * 5)
    section, document = page(scored(0, scores=[cut, failed]), scored(1, scores=[], path="generic_mrv1"))
    text = document.by_id("accuracy").text
    assert "3 of 6 answers were cut" in text and "5 of 5 requests failed; the first said: lost" in text
    assert "generic_mrv1 tiny_v32: not scored: its launch ended with OK" in text
    assert section.rows[1].numeric.text == DASH


def test_a_run_without_accuracy_has_no_section(page):
    section, document = page(make_record())
    assert section is None
    with pytest.raises(StopIteration):
        document.by_id("accuracy")


def test_a_dense_score_is_a_note_of_its_record():
    from paths.api import Counters

    dense = score([row()], before=Counters(), after=Counters(decode_tokens=10, decode_tokens_sparse=1))
    (note,) = [one for one in notes(scored(scores=[dense])) if "sparsity" in one]
    assert note.startswith("arith_gsm 5-shot c64 did not exercise sparsity: 10%")
    without_indexer = scored(scores=[dense]).model_copy(update={"effective": {"index_dtype": "none"}})
    assert [one for one in notes(without_indexer) if "sparsity" in one] == []


def test_the_terminal_shows_every_score(capsys):
    part = score([row()] * 3, ended="interrupted")
    print_scores([scored(scores=[score([row()] * 20), part]), make_record(1)])
    shown = capsys.readouterr().out
    assert "1.000 [0.839, 1.000]" in shown and "stopped after 3" in shown
    print_scores([scored(scores=[score([row()] * 20)])], settings=lambda _: ["checkpoint=mine"])
    assert "checkpoint=mine" in capsys.readouterr().out
    print_scores([make_record()])
    assert capsys.readouterr().out == ""
