from __future__ import annotations

import numpy as np
import pytest

from harness.measurement import Phase
from harness.window import Window, active_window, steady_window
from tests.harness.measurements import MS, Row, measurement, spec


def ns(*values: float) -> np.ndarray:
    return np.array([round(v * MS) for v in values], dtype=np.int64)


def test_window_holds_its_end_and_not_its_start():
    window = Window(10, 20)
    assert window.holds(np.array([9, 10, 11, 20, 21])).tolist() == [False, False, True, True, False]
    assert window.overlap_ns(np.array([0, 12, 30]), np.array([15, 14, 40])).tolist() == [5, 2, 0]


def test_window_runs_from_the_first_to_the_last_moment_of_full_load():
    # 0 ─────────── 100      two slots; the dip at 50..55 lies inside
    #    10 ── 50 55 ── 90
    window = active_window(ns(0, 10, 55), ns(100, 50, 90), 2)
    assert window == Window(10 * MS, 90 * MS)


def test_no_window_when_the_load_is_never_reached():
    assert active_window(ns(0, 50), ns(40, 90), 2) is None
    assert active_window(ns(0), ns(0), 1) is None  # no time passes
    assert active_window(ns(), ns(), 1) is None


def test_a_slot_that_changes_hands_at_one_moment_counts_once():
    assert active_window(ns(0, 10), ns(10, 20), 2) is None
    assert active_window(ns(0, 10), ns(10, 20), 1) == Window(0, 20 * MS)


@pytest.mark.parametrize(
    ("concurrency", "steady"), [(1, 1), (2, 2), (16, 16), (20, 19), (63, 60), (100, 95), (1024, 973)]
)
def test_steady_means_95_percent_rounded_up(concurrency, steady):
    assert spec(concurrency=concurrency).steady_requests == steady


def test_warm_up_requests_do_not_make_the_load_steady():
    rows = [
        Row([(60, 1)], sent=0, phase=Phase.WARMUP),
        Row([(40, 1)], sent=20),  # takes the other slot while one warm-up request runs
        Row([(100, 1)], sent=60),
        Row([(90, 1)], sent=40),
    ]
    window, excuse = steady_window(measurement(*rows, load=spec(concurrency=2), measured=20))
    assert (window, excuse) == (Window(60 * MS, 90 * MS), None)


def test_absent_window_says_why():
    window, excuse = steady_window(measurement(Row([(5, 1)]), load=spec(concurrency=100)))
    assert window is None
    assert excuse == (
        "no steady window: 95 measured requests were never in flight together; raise num_prompts or measure_s"
    )
    window, excuse = steady_window(measurement(Row([(5, 1)], phase=Phase.WARMUP)))
    assert (window, excuse) == (None, "no steady window: no measured request was sent")


def test_open_loop_window_is_the_measured_schedule():
    load = spec(concurrency=None, request_rate=10.0)
    rows = [Row([(30, 1)], sent=10, phase=Phase.WARMUP), Row([(250, 1)], sent=200), Row([(400, 1)], sent=300)]
    window, _ = steady_window(measurement(*rows, load=load, measured=100))
    assert window == Window(100 * MS, 300 * MS)
    rows[0] = Row([(150, 1)], sent=10, phase=Phase.WARMUP)  # its end makes the load steady
    assert steady_window(measurement(*rows, load=load, measured=100))[0] == Window(150 * MS, 300 * MS)
    rows[0] = Row([(350, 1)], sent=10, phase=Phase.WARMUP)
    window, excuse = steady_window(measurement(*rows, load=load, measured=100))
    assert window is None
    assert excuse.startswith("no steady window: the last request was sent before the warm-up had ended")
