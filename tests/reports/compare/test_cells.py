"""From records to launches: what counts is decided by states and checks."""

from __future__ import annotations

import random

import pytest

from harness.records import Check, RecordError
from reports.compare.cells import cell_name, collect, difference, natural_key
from tests.reports.conftest import make_failed, make_record

BAD = Check(ok=False, detail="31 % of the measured phase")


def only(records, *, gated=True):
    (cell,) = collect(records, gated=gated).values()
    return cell.launches


@pytest.mark.parametrize(
    "check", ["success", "window_ok", "little", "client_lag", "achieved_rate", "unique_prompts"]
)
def test_a_failed_check_of_the_load_makes_a_gated_launch_unusable(check):
    (launch,) = only([make_record(checks={check: BAD})])
    assert launch.state == "INVALID" and launch.cause == f"check {check}: 31 % of the measured phase"
    (shown,) = only([make_record(checks={check: BAD})], gated=False)
    assert shown.cause is None and shown.flags == (f"check {check}: 31 % of the measured phase",)


def test_other_checks_and_unjudged_ones_leave_it_usable():
    (launch,) = only([make_record(checks={"cpu_wait": BAD, "window_ok": Check(ok=None, detail="unknown")})])
    assert launch.cause is None and launch.state == "OK"


def test_a_state_without_numbers_is_a_cause():
    (launch,) = only([make_failed(0, "OOM", "out of memory")])
    assert launch.cause == "OOM: out of memory" and launch.values == {}


def test_a_fallback_has_numbers_and_a_flag():
    (launch,) = only([make_record(state="FALLBACK", reason="torch instead of triton", checks={})])
    assert launch.cause is None and launch.values and launch.flags == ("FALLBACK: torch instead of triton",)


def test_absent_metrics_keep_their_reason():
    (launch,) = only([make_record()])
    assert "ttft_p99_ms" not in launch.values and launch.absent["ttft_p99_ms"].startswith("p99 needs 1000")


@pytest.mark.parametrize(
    ("cache", "names"),
    [
        ("cold", {"startup_cold_s"}),
        ("warm", {"startup_warm_s"}),
        ("unused", {"startup_cold_s", "startup_warm_s"}),
        ("partly warm", set()),
    ],
)
def test_cold_and_warm_starts_are_two_metrics(cache, names):
    (launch,) = only([make_record(startup={"ready_s": 4.0, "compile_cache": cache})])
    assert {name for name in launch.values if name.startswith("startup")} == names
    assert launch.values["memory_bytes"] == 2**30


def test_order_of_records_does_not_matter():
    records = [
        make_record(order, cell_id="c" if order % 2 else "d", pair=order // 2, launch_id=f"L{9 - order}")
        for order in range(8)
    ]
    shuffled = list(records)
    random.Random(1).shuffle(shuffled)
    assert collect(records, gated=True) == collect(shuffled, gated=True)
    assert [one.pair for one in collect(shuffled, gated=True)["c"].launches] == [0, 1, 2, 3]


def test_two_arms_in_one_cell_are_refused():
    records = [make_record(0, cell_id="c", arm_id="a"), make_record(1, cell_id="c", arm_id="b")]
    with pytest.raises(RecordError, match="records of 2 arms"):
        collect(records, gated=True)


def test_a_cell_is_named_without_its_path():
    assert cell_name(make_record(label="dsa_mrv2 tiny c4")) == "tiny c4"
    assert cell_name(make_record(label="tiny c4")) == "tiny c4"


def test_names_and_differences():
    assert sorted(["c16", "c2", "c1"], key=natural_key) == ["c1", "c2", "c16"]
    assert difference({"path": "a", "isl": 1, "x": None}, {"path": "b", "isl": 2}) == [
        "isl: 1 → 2",
        "x: null → not set",
    ]
