"""The table that ends a run, as text."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import harness.result_table
from harness.records import Check, Metric
from tests.reports.conftest import make_record


@pytest.fixture
def shown(monkeypatch):
    def show(*records):
        text = StringIO()
        monkeypatch.setattr(harness.result_table, "out", Console(file=text, width=200))
        harness.result_table.print_result(records, Path("report.html"))
        return text.getvalue()

    return show


def make(order=0, *, requested=None, **changes):
    asked = {"options": {}, "num_prompts": None, "burstiness": 1.0} | (requested or {})
    return make_record(order, requested=asked, **changes)


def test_an_open_loop_shows_the_latency_from_the_schedule(shown):
    """Known fault 019: a queue in the client must not vanish from the latency."""
    closed, open_ = make(0), make(1, requested={"concurrency": 4, "request_rate": 2.5})
    assert "TTFT p50 ms" in shown(closed) and "from schedule" not in shown(closed)
    alone = shown(open_)
    assert "TTFT from schedule p50 ms" in alone and "TTFT p50 ms" not in alone
    assert "82.00" in alone
    both = shown(closed, open_)
    assert "TTFT p50 ms" in both and "TTFT from schedule p50 ms" in both


def test_an_option_gets_a_column_where_one_path_varies_it(shown):
    one = make(0, requested={"options": {"graphs": "none", "gap_ms": 1}})
    other_path = make(1, requested={"path": "generic_mrv1", "options": {"graphs": "full", "gap_ms": 1}})
    assert "options." not in shown(one, other_path)
    same_path = make(2, requested={"options": {"graphs": "full", "gap_ms": 1}})
    text = shown(one, same_path)
    assert "options.graphs" in text and "options.gap_ms" not in text


def test_what_did_not_run_as_labelled_stands_above_the_table(shown):
    died = make(0, state="FAILED", reason="it crashed", metrics={}, label="first")
    wrong = make(1, state="PATH_MISMATCH", reason="runner V1", metrics={}, label="second")
    text = shown(died, wrong)
    places = [
        text.index(words) for words in ("second: PATH_MISMATCH: runner V1", "out tok/s", "first: FAILED")
    ]
    assert places == sorted(places) and text.count("runner V1") == 1


def test_failed_checks_and_notes_are_lines_of_their_own(shown):
    few = {"dsa_active_token_frac": Metric(value=0.25, unit="fraction", better="none", n=9)}
    checks = {"success": Check(ok=False, detail="1 of 2 requests failed")}
    text = shown(make(metrics=few, checks=checks, label="a cell"))
    assert "OK (check success)" in text
    assert "a cell: check success: 1 of 2 requests failed" in text
    assert "note: sparsity not exercised: 25% of the decode tokens" in text
    twice = shown(make(0, metrics=few), make(1, metrics=few), make(2))
    assert twice.count("note (2 of 3 cells): sparsity not exercised: 25%") == 1
    assert "note:" not in shown(make())


def test_a_load_that_fits_no_graph_says_so(shown):
    counters = {"steps": {"NONE": 9, "FULL": 8}, "graph_misses": {"PIECEWISE: too large": 9}}
    said = "note: graphs not exercised: 9 of 17 steps ran without one (PIECEWISE: too large)"
    assert said in " ".join(shown(make(effective={"graphs": 2}, counters=counters)).split())
    half = counters | {"steps": {"NONE": 8, "FULL": 8}}
    assert "graphs" not in shown(make(effective={"graphs": 2}, counters=half))
    assert "graphs" not in shown(make(effective={"graphs": 0}, counters=counters)), "an eager path has none"


def test_drafts_have_columns_and_forced_ones_are_called_so(shown):
    plain = make(0)
    length = Metric(value=2.5, unit="tok/step", better="up", n=40)
    real = make(1, requested={"mtp": 3, "mtp_forced_al": None})
    forced = make(
        2,
        requested={"mtp": 3, "mtp_forced_al": 2.5},
        effective={"mtp": 3, "mtp_forced_al": 2.5},
        metrics=plain.metrics | {"al": length},
    )
    assert "mtp" not in shown(plain) and "AL" not in shown(plain)
    text = shown(plain, real, forced)
    assert "AL ↑" in text and "3 forced al=2.5" in text and "2.50" in text
    assert "acknowledged by the engine); the answers mean nothing" in text
    silent = make(3, requested={"mtp": 3, "mtp_forced_al": 2.5})
    assert "NOT acknowledged" in shown(silent)
