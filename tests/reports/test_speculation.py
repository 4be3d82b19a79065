"""The split of a speed-up by drafts, and its section of the page."""

from __future__ import annotations

import math

import pytest

from harness.records import Metric
from reports.html import render
from reports.load import load_run
from reports.speculation import changes, split_speedups
from tests.reports.conftest import make_failed, make_record


def metric(value, unit="", better="up", ci95=None):
    return Metric(value=value, unit=unit, better=better, n=40, ci95=ci95)


def make(order, mtp, *, tpot=10.0, al=None, path="dsa_mrv2", forced=None, rate=100.0, cut=1.0, **changes):
    metrics = {"tpot_pooled_ms": metric(tpot, "ms", "down"), "out_tps": metric(rate, "tok/s")}
    if mtp:
        shares = {f"u_{i}": metric(0.8 ** (i + 1), "fraction", ci95=(0.1, 0.9)) for i in range(mtp)}
        shares |= {f"c_{i}": metric(0.8, "fraction", ci95=(0.7, 0.9)) for i in range(mtp)}
        metrics |= {"al": metric(al, "tok/step", ci95=(al - 0.1, al + 0.1)), **shares}
        metrics |= {"al_emitted": metric(al / cut, "tok/step")}
        metrics |= {"step_ms": metric(tpot * al, "ms", "down"), "draft_rate": metric(0.6, "fraction")}
        metrics |= {"al_req_mean": metric(al, "tok/step"), "spec_coverage": metric(0.95, "fraction")}
    asked = {"mtp": mtp, "mtp_mode": "forced" if forced else "real", "mtp_forced_al": forced}
    asked |= {"path": path, "options": {"path": path}} | changes.pop("requested", {})
    label = f"{path} tiny_v32 {f'mtp={mtp} ' if mtp else ''}c1"
    counters = {"verify_steps": 56, "verified_at": [56, 52, 40][:mtp]}
    return make_record(order, counters=counters, metrics=metrics, requested=asked, label=label, **changes)


def test_the_split_of_a_speed_up():
    (split,), without = split_speedups([make(0, 0, tpot=10), make(1, 3, tpot=5, al=3.0)])
    assert without == []
    assert split.log_speedup == pytest.approx(math.log(2))
    assert split.log_length == pytest.approx(math.log(3))
    assert split.log_cost == pytest.approx(math.log(1.5))
    assert split.log_cut == pytest.approx(0)


def test_what_is_cut_is_no_cost_of_a_step():
    (split,), _ = split_speedups([make(0, 0, tpot=10), make(1, 3, tpot=5, al=3.0, cut=1.2)])
    assert math.exp(split.log_cut) == pytest.approx(1.2)
    assert math.exp(split.log_cost) == pytest.approx(3 / 1.2 / 2)
    assert split.log_speedup == pytest.approx(split.log_length - split.log_cut - split.log_cost)


def test_only_cells_that_differ_in_mtp_alone_are_compared():
    other_path = make(0, 0, path="generic_mrv1")
    other_load = make(1, 0, requested={"concurrency": 16})
    splits, (one,) = split_speedups([other_path, other_load, make(2, 3, al=3.0)])
    assert splits == [] and one.reason == "the run has no cell with mtp=0 that is otherwise the same"


def test_each_mtp_and_each_forced_length_is_a_split_of_its_own():
    cells = [make(0, 0), make(1, 1, al=1.5), make(2, 3, al=2.0), make(3, 3, al=2.5, forced=2.5)]
    splits, _ = split_speedups(cells)
    assert [math.exp(split.log_length) for split in splits] == pytest.approx([1.5, 2.0, 2.5])


def test_rounds_are_paired_and_the_median_counts():
    cells = [make(2 * n, 0, tpot=10.0 * n, round=n) for n in (1, 2, 3)]
    cells += [
        make(2 * n + 1, 2, tpot=10.0 * n / gain, al=2.5, round=n)
        for n, gain in ((1, 1.2), (2, 3.0), (3, 2.0))
    ]
    (split,), _ = split_speedups(cells)
    assert split.rounds == 3
    assert math.exp(split.log_speedup) == pytest.approx(2.0)


def test_each_arm_is_split_against_its_own_cell_without_drafts():
    cells = [
        make(order, mtp, tpot=tpot, al=3.0, arm=arm)
        for order, (arm, mtp, tpot) in enumerate(
            [("baseline", 0, 10.0), ("baseline", 3, 5.0), ("candidate", 3, 5.0), ("candidate", 0, 20.0)]
        )
    ]
    splits, without = split_speedups(cells)
    assert without == []
    found = {split.path: round(math.exp(split.log_speedup), 6) for split in splits}
    assert found == {"dsa_mrv2 (baseline)": 2.0, "dsa_mrv2 (candidate)": 4.0}
    (split,), _ = split_speedups(cells[::2])  # drafts against none, as baseline_set={mtp: 0} has it
    assert split.path == "dsa_mrv2 (candidate)" and split.log_speedup == pytest.approx(math.log(2))


def test_fault_121_a_cell_that_did_not_draft_has_no_speed_up():
    dead = make_failed(
        1, "INVALID", "drafting: mtp=3 was asked for, but no draft was verified",
        requested={"mtp": 3, "mtp_mode": "real", "mtp_forced_al": None, "options": {"path": "dsa_mrv2"}},
    )  # fmt: skip
    splits, (one,) = split_speedups([make(0, 0), dead])
    assert splits == [] and one.reason.startswith("mtp=3 is INVALID: drafting")


def test_a_missing_number_is_a_reason():
    on = make(1, 3, al=2.0)
    on.metrics["tpot_pooled_ms"] = Metric(value=None, unit="ms", better="down", n=0, reason="no window")
    _, (one,) = split_speedups([make(0, 0), on])
    assert one.reason == "tpot_pooled_ms of mtp=3: no window"


def test_the_change_from_path_to_path():
    cells = [
        make(0, 0, tpot=10, path="generic_mrv1"), make(1, 3, tpot=8, al=2.0, path="generic_mrv1"),
        make(2, 0, tpot=6), make(3, 3, tpot=3, al=2.4),
    ]  # fmt: skip
    (change,) = changes(split_speedups(cells)[0])
    assert (change.first.path, change.second.path) == ("generic_mrv1", "dsa_mrv2")
    speedup, length, cut, cost = change.terms
    assert speedup == pytest.approx(math.log(2 / 1.25))
    assert length == pytest.approx(math.log(1.2))
    assert cut == pytest.approx(0) and speedup == pytest.approx(length - cost)


@pytest.fixture
def page(run_folder, parse):
    def show(*records):
        text = render(load_run(run_folder(list(records))))
        assert text.count("<script") == 1  # that of the tables, no name of ours
        return parse(text)

    return show


def test_the_page_says_it_in_text(page):
    section = page(make(0, 0, tpot=10), make(1, 3, tpot=5, al=3.0)).by_id("speculation").text
    assert "+0.693" in section and "+1.099" in section and "+0.405" in section
    assert "the drafts pay for their verification" in section
    assert "0.64" in section and "0.700 … 0.900" in section and "2 of 3" in section
    assert "2.90 … 3.10" in section and "52 of 56" in section
    assert "Forced acceptance" not in section


def test_the_page_calls_forced_acceptance_so(page):
    section = page(make(0, 0), make(1, 2, al=2.5, forced=2.5)).by_id("speculation").text
    assert "Forced acceptance" in section and "2 forced al=2.5" in section and "1 of 2, forced" in section


def test_a_run_without_drafts_has_no_section(page):
    assert not [one for one in page(make(0, 0)).walk() if one.attributes.get("id") == "speculation"]


def test_a_cell_without_numbers_keeps_its_reason(page):
    asked = {"mtp": 3, "mtp_mode": "real", "mtp_forced_al": None, "options": {"path": "dsa_mrv2"}}
    section = (
        page(make(0, 0), make_failed(1, reason="out of luck", requested=asked)).by_id("speculation").text
    )
    assert "out of luck" in section
