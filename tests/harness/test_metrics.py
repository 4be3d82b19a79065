from __future__ import annotations

import math
import pickle

import numpy as np
import pytest

from harness.checks import why_invalid
from harness.measurement import Cut, Phase, Snapshot
from harness.metrics import summarize
from harness.records import Check
from harness.request_times import MeasurementError, derive
from paths.api import Counters, FinishReason
from tests.harness.measurements import MS, Row, measurement, spec

# every metric, so that none is dropped or renamed unnoticed
NAMES = {
    *("out_tps", "out_tps_per_gpu", "total_tps", "out_tps_full", "total_tps_full", "req_per_s"),
    *("tpot_pooled_ms", "tpot_mean_ms", "tpot_p50_ms", "tpot_p90_ms", "tpot_p99_ms", "interactivity"),
    *("ttft_mean_ms", "ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms"),
    *("ttft_sched_mean_ms", "ttft_sched_p50_ms", "ttft_sched_p90_ms", "ttft_sched_p99_ms"),
    *("e2e_mean_ms", "e2e_p50_ms", "e2e_p90_ms", "e2e_p99_ms"),
    *("e2e_sched_mean_ms", "e2e_sched_p50_ms", "e2e_sched_p90_ms", "e2e_sched_p99_ms"),
    *("queue_mean_ms", "icl_p50_ms", "icl_p99_ms", "icl_max_ms", "itl_mean_ms", "itl_p50_ms", "itl_p99_ms"),
    *("tokens_per_event", "success_rate", "client_lag_p99_ms", "achieved_rate", "prefix_hit_rate"),
    "client_read_lag_p99_ms",
    *("cpu_s_per_token", "dsa_active_token_frac", "output_tokens", "requests_ok", "measured_s", "window_s"),
}
UP = {"out_tps", "out_tps_per_gpu", "total_tps", "out_tps_full", "total_tps_full", "req_per_s"}
UP |= {"interactivity", "success_rate"}


def two_slots():
    """Two slots, window 10..100 ms (both full): the hand-computed example of most tests here."""
    return [
        Row([(20, 1), (40, 3)], sent=0, prompt=4),
        Row([(30, 1), (50, 1), (100, 2)], sent=10, prompt=6),
        Row([(60, 1), (120, 2)], sent=40, prompt=8),  # ends in the drain
    ]


def test_window_throughput_credits_tokens_by_their_own_arrival():
    metrics, _, statuses = summarize(measurement(*two_slots(), load=spec(concurrency=2)), gpus=2)
    # in (10, 100]: 1+3, 1+1+2, 1 = 9 tokens and the prompts of all three (first tokens at 20, 30, 60)
    assert metrics["window_s"].value == pytest.approx(0.09)
    assert metrics["out_tps"].value == pytest.approx(9 / 0.09)
    assert metrics["out_tps"].n == 9
    assert metrics["out_tps_per_gpu"].value == pytest.approx(9 / 0.09 / 2)
    assert metrics["total_tps"].value == pytest.approx((9 + 18) / 0.09)
    assert metrics["req_per_s"].value == pytest.approx(2 / 0.09)
    # full run: 11 tokens from 0 to 120 ms
    assert metrics["out_tps_full"].value == pytest.approx(11 / 0.12)
    assert metrics["total_tps_full"].value == pytest.approx(29 / 0.12)
    assert metrics["output_tokens"].value == 11
    assert statuses == {"ok": 3}


def test_latency_samples_belong_to_the_window_by_first_and_last_token():
    metrics, _, _ = summarize(measurement(*two_slots(), load=spec(concurrency=2)), gpus=1)
    assert metrics["ttft_mean_ms"].value == pytest.approx((20 + 20 + 20) / 3)
    assert metrics["ttft_mean_ms"].n == 3
    assert metrics["e2e_mean_ms"].value == pytest.approx((40 + 90) / 2)
    assert metrics["e2e_mean_ms"].n == 2
    # TPOT: 20/3 and 70/3; pooled (20 + 70) / (3 + 3)
    assert metrics["tpot_mean_ms"].value == pytest.approx((20 / 3 + 70 / 3) / 2)
    assert metrics["tpot_pooled_ms"].value == pytest.approx(15)
    assert metrics["interactivity"].value == pytest.approx(1000 / 15)


def test_pooled_tpot_weighs_tokens_not_requests():
    rows = [Row([(10, 1), (20, 1)], sent=0), Row([(30, 1), (130, 100)], sent=20)]
    metrics, _, _ = summarize(measurement(*rows), gpus=1)
    assert metrics["tpot_mean_ms"].value == pytest.approx((10 + 1) / 2)
    assert metrics["tpot_pooled_ms"].value == pytest.approx(110 / 101)


def test_gaps_and_tokens_per_event():
    metrics, _, _ = summarize(measurement(*two_slots(), load=spec(concurrency=2)), gpus=1)
    # gaps ending in the window: 20 (3 tokens), 20 (1), 50 (2); the one of 60 ends in the drain
    assert metrics["icl_p50_ms"].value == 20
    assert metrics["icl_max_ms"].value == 50
    assert metrics["icl_max_ms"].n == 3
    assert metrics["itl_mean_ms"].value == pytest.approx((20 + 20 + 50) / 6)
    assert metrics["itl_mean_ms"].n == 6
    assert metrics["tokens_per_event"].value == pytest.approx(6 / 3)


def test_every_metric_is_there_with_unit_and_direction():
    metrics, _, _ = summarize(measurement(*two_slots(), load=spec(concurrency=2)), gpus=1)
    assert set(metrics) == NAMES
    for name, metric in metrics.items():
        assert (metric.better == "up") == (name in UP), name
        if name.endswith("_ms"):
            assert (metric.unit, metric.better) == ("ms", "down"), name


@pytest.mark.parametrize("rows", [(), (Row([(5, 1)]),), (Row(finish=FinishReason.ERROR, ended=2.0),)])
def test_nothing_is_ever_nan_and_absence_has_a_reason(rows):
    metrics, checks, _ = summarize(measurement(*rows, load=spec(concurrency=63)), gpus=1)
    assert set(metrics) == NAMES
    for name, metric in metrics.items():
        assert metric.value is None or math.isfinite(metric.value), name
        assert "NaN" not in metric.model_dump_json()
    assert metrics["out_tps"].value is None
    assert metrics["tpot_mean_ms"].reason.startswith("no steady window")
    assert not checks["window_ok"].ok


def test_without_a_window_the_full_run_stands():
    metrics, checks, _ = summarize(measurement(Row([(5, 1), (10, 1)]), load=spec(concurrency=63)), gpus=1)
    assert metrics["out_tps"].reason.startswith("no steady window: 60 measured requests")
    assert metrics["out_tps_full"].value == pytest.approx(2 / 0.01)
    assert checks["little"].ok is None


def test_tokens_of_warm_up_stragglers_count_as_throughput_but_not_as_latency():
    rows = [
        Row([(100, 7)], sent=0, phase=Phase.WARMUP),
        *[Row([(90, 1), (150, 1)], sent=10, tag=f"{i}") for i in range(19)],
    ]
    metrics, _, statuses = summarize(measurement(*rows, load=spec(concurrency=20), measured=10), gpus=1)
    assert metrics["out_tps"].value == pytest.approx((7 + 38) / 0.14)
    assert metrics["ttft_mean_ms"].n == 19
    assert metrics["out_tps_full"].value == pytest.approx(38 / 0.14)
    assert statuses == {"ok": 19}


def test_tokens_of_failed_requests_are_no_throughput():
    rows = [Row([(10, 1), (20, 1)], sent=0), Row([(25, 50)], sent=20, finish=FinishReason.ERROR, ended=40)]
    metrics, _, statuses = summarize(measurement(*rows), gpus=1)
    assert metrics["out_tps"].value == pytest.approx(2 / 0.04)
    assert metrics["out_tps_full"].n == 2
    assert statuses == {"ok": 1, "http_error": 1}


def test_statuses():
    rows = [
        Row([(10, 2)], asked=2),
        Row([(10, 1)], asked=2, finish=FinishReason.STOP),
        Row([(10, 1)], asked=2),
        Row([(10, 3)], asked=2),
        Row([(10, 2)], asked=2, finish=FinishReason.STOP),
        Row([], finish=FinishReason.STOP),
        Row([(10, 1)], finish=FinishReason.NONE),
        Row([(10, 1)], finish=FinishReason.ABORT),
        Row([(10, 1)], finish=FinishReason.ERROR),
        Row([(10, 1)], finish=FinishReason.ABORT, cut=Cut.TIMEOUT),
        Row([(10, 1)], finish=FinishReason.NONE, cut=Cut.CANCELLED),
        Row([(10, 1)], finish=FinishReason.NONE, cut=Cut.DISCONNECT),
    ]
    _, checks, strict = summarize(measurement(*rows, exact=True), gpus=1)
    assert strict == {
        "ok": 1, "early_stop": 1, "osl_mismatch": 3, "empty": 1, "truncated": 1, "cancelled": 2,
        "http_error": 1, "timeout": 1, "disconnect": 1,
    }  # fmt: skip
    assert checks["osl"].ok is False
    _, checks, free = summarize(measurement(*rows, exact=False), gpus=1)
    assert free["ok"] == 4  # a stop before the limit is an answer; more tokens than asked for is not
    assert free["osl_mismatch"] == 1
    assert checks["osl"].ok is None


def counters(ms: float, **values) -> Snapshot:
    return Snapshot(time_ns=round(ms * MS), counters=Counters(**values))


def test_counters_around_the_window():
    snapshots = {
        "before": counters(0, output_tokens=100),
        "window_start": counters(15, cpu_seconds=1.0, prefix_cache_hits=50, recompiles=3, decode_tokens=7),
        "window_end": counters(
            105, cpu_seconds=1.9, prefix_cache_hits=59, recompiles=3, decode_tokens=15, decode_tokens_sparse=6
        ),
        "after": counters(130, output_tokens=111),
    }
    metrics, checks, _ = summarize(
        measurement(*two_slots(), load=spec(concurrency=2), snapshots=snapshots), gpus=1
    )
    assert metrics["cpu_s_per_token"].value == pytest.approx(0.9 / 9)
    assert metrics["prefix_hit_rate"].value == pytest.approx(9 / 18)
    assert metrics["dsa_active_token_frac"].value == pytest.approx(6 / 8)
    assert metrics["dsa_active_token_frac"].n == 8
    assert checks["prefix_cache"].ok is False
    assert checks["recompiles"].ok is True
    assert checks["tokens"].ok is True


@pytest.mark.parametrize(("waited", "ok"), [(None, None), (0.004, True), (0.009, False)])
def test_an_engine_without_a_processor_is_flagged(waited, ok):
    snapshots = {
        "window_start": counters(15, cpu_wait_seconds=0.0),
        "window_end": counters(105, cpu_wait_seconds=waited),
    }
    metrics, checks, _ = summarize(
        measurement(*two_slots(), load=spec(concurrency=2), snapshots=snapshots), gpus=1
    )
    assert checks["cpu_wait"].ok is ok
    assert metrics["cpu_s_per_token"].value is None  # this engine does not tell its CPU time


def test_nan_logits_leave_no_numbers():
    snapshots = {"before": counters(0), "after": counters(130, nan_logit_rows=2)}
    _, checks, _ = summarize(measurement(*two_slots(), load=spec(concurrency=2), snapshots=snapshots), gpus=1)
    assert checks["finite"].ok is False
    assert "2 sampled rows" in why_invalid(checks)


def test_token_accounts_disagree():
    snapshots = {"before": counters(0, output_tokens=0), "after": counters(130, output_tokens=12)}
    _, checks, _ = summarize(measurement(*two_slots(), load=spec(concurrency=2), snapshots=snapshots), gpus=1)
    assert checks["tokens"].ok is False
    assert checks["tokens"].detail == "client read 11 tokens, engine counted 12"
    cut = measurement(Row([(10, 1)], cut=Cut.TIMEOUT), snapshots=snapshots)
    assert summarize(cut, gpus=1)[1]["tokens"].ok is None


def test_success_counts_every_attempt_and_quotes_the_first_error():
    rows = [Row([(10, 1)]), Row(sent=10, finish=FinishReason.ERROR, ended=12.0, error="too long")]
    check = summarize(measurement(*rows), gpus=1)[1]["success"]
    assert check.ok is False
    assert check.detail == "1 of 2 requests failed; the first: http_error (too long)"
    assert summarize(measurement(rows[0]), gpus=1)[1]["success"].ok is True
    late = Row([(30, 1)], sent=10, asked=2, cut=Cut.TIMEOUT, finish=FinishReason.NONE)
    load = spec(concurrency=None, request_rate=100.0)
    open_loop = summarize(measurement(rows[0], late, load=load), gpus=1)[1]["success"]
    assert open_loop.detail == "1 of 2 requests failed; the first: timeout (no error was given)"
    assert summarize(measurement(), gpus=1)[1]["success"].ok is None


def test_an_empty_answer_breaks_a_promised_length():
    rows = [Row([(10, 2)], asked=2), Row(sent=10, asked=2, finish=FinishReason.STOP, ended=20.0)]
    strict = summarize(measurement(*rows, exact=True), gpus=1)[1]
    assert strict["osl"].detail == "output length contract broken: 0 of 2 tokens (1 of 2 requests)"
    assert summarize(measurement(*rows, exact=False), gpus=1)[1]["osl"].ok is None


def test_only_wrong_answers_invalidate():
    checks = {name: Check(ok=True, detail="fine") for name in ("osl", "tokens", "prefix_cache", "window_ok")}
    assert why_invalid(checks) is None
    assert why_invalid(checks | {"window_ok": Check(ok=False, detail="short")}) is None
    assert why_invalid(checks | {"osl": Check(ok=None, detail="no lengths")}) is None
    wrong = {"osl": Check(ok=False, detail="3 of 6"), "tokens": Check(ok=False, detail="4 and 5")}
    assert why_invalid(checks | wrong) == "osl: 3 of 6; tokens: 4 and 5"


def test_recompile_in_the_window_is_seen():
    snapshots = {"window_start": counters(15, recompiles=3), "window_end": counters(105, recompiles=4)}
    _, checks, _ = summarize(measurement(*two_slots(), load=spec(concurrency=2), snapshots=snapshots), gpus=1)
    assert checks["recompiles"].ok is False


def test_window_check_needs_share_and_generations():
    one = [Row([(i * 10 + 10, 1)], sent=i * 10) for i in range(2)]
    assert summarize(measurement(*one, load=spec()), gpus=1)[1]["window_ok"].ok is True
    assert summarize(measurement(one[0], load=spec()), gpus=1)[1]["window_ok"].ok is False  # one generation
    late = measurement(*one, load=spec(), measured=-30.0)  # window 20 ms of a phase of 50 ms
    check = summarize(late, gpus=1)[1]["window_ok"]
    assert check.ok is False
    assert check.detail.startswith("40% of the measured phase")


def test_little_sees_idle_slots():
    busy = [Row([(i * 10 + 10, 1)], sent=i * 10) for i in range(5)]
    assert summarize(measurement(*busy), gpus=1)[1]["little"].ok is True
    idle = [Row([(i * 11 + 10, 1)], sent=i * 11) for i in range(5)]  # 50 of 54 ms
    check = summarize(measurement(*idle), gpus=1)[1]["little"]
    assert check.ok is False
    assert check.detail == "0.9259 requests in flight of 1 asked"


def test_client_lag_limit_follows_ttft():
    rows = [Row([(i * 2000 + 1000, 1)], sent=i * 2000, ready=i * 2000 - 40) for i in range(3)]
    check = summarize(measurement(*rows), gpus=1)[1]["client_lag"]
    assert check.ok is True  # 5 % of 1000 ms
    assert "limit 50 ms" in check.detail
    rows = [Row([(i * 2000 + 100, 1)], sent=i * 2000, ready=i * 2000 - 11) for i in range(3)]
    assert summarize(measurement(*rows), gpus=1)[1]["client_lag"].ok is False


def test_client_lag_limit_follows_the_profile():
    rows = [Row([(i * 2000 + 150, 1)], sent=i * 2000, ready=i * 2000 - 2) for i in range(3)]
    assert summarize(measurement(*rows), gpus=1)[1]["client_lag"].ok is True
    gpu = spec(lag_limit_ms=1.0, lag_share_of_ttft=0.01)
    check = summarize(measurement(*rows, load=gpu), gpus=1)[1]["client_lag"]
    assert check.ok is False and check.detail.endswith("limit 1.5 ms")


def test_a_client_that_reads_late_is_seen():
    late = measurement(*[Row([(i * 2000 + 100, 1)], sent=i * 2000) for i in range(3)])
    late.events.emitted_ns[:] -= 12 * MS
    check = summarize(late, gpus=1)[1]["client_lag"]
    assert check.ok is False
    assert check.detail == (
        "sent late by p99 0 ms (3 requests), read late by p99 12 ms (3 events), limit 10 ms"
    )
    assert summarize(late, gpus=1)[0]["client_read_lag_p99_ms"].n == 3


def test_repeated_prompts_are_flagged():
    rows = [Row([(10, 1)], tag="same"), Row([(20, 1)], sent=10, tag="same")]
    assert summarize(measurement(*rows), gpus=1)[1]["unique_prompts"].ok is False
    assert summarize(measurement(rows[0], repeated=1), gpus=1)[1]["unique_prompts"].ok is False
    assert summarize(measurement(rows[0]), gpus=1)[1]["unique_prompts"].ok is True


def test_failed_warm_up_counts_its_requests():
    rows = [Row(phase=Phase.WARMUP, finish=FinishReason.ERROR, ended=1.0, error="too long") for _ in range(3)]
    metrics, _, statuses = summarize(measurement(*rows, aborted="3 requests failed in a row"), gpus=1)
    assert statuses == {"http_error": 3}
    assert metrics["success_rate"].value == 0.0
    assert metrics["out_tps"].reason == "3 requests failed in a row"


def test_measurement_is_pure_data():
    before = measurement(*two_slots(), load=spec(concurrency=2))
    after = pickle.loads(pickle.dumps(before))
    assert summarize(after, gpus=1) == summarize(before, gpus=1)


def test_summarize_does_not_depend_on_how_requests_interleave():
    rng = np.random.default_rng(0)
    rows = []
    for index in range(111):
        times = np.cumsum(rng.integers(1, 9, size=rng.integers(1, 12)))
        rows.append(Row([(float(t), int(rng.integers(1, 5))) for t in times], tag=f"{index}"))
    times, gaps = derive(measurement(*rows))
    for index, row in enumerate(rows):
        assert times.output_tokens[index] == sum(n for _, n in row.events)
        assert times.first_event_tokens[index] == row.events[0][1]
        assert times.events[index] == len(row.events)
        assert times.first_ns[index] == row.events[0][0] * MS
        assert times.last_ns[index] == row.events[-1][0] * MS
        own = gaps.gap_ns[gaps.request == index] / MS
        assert own.tolist() == np.diff([ms for ms, _ in row.events]).tolist()


def test_contradictory_times_are_an_error():
    with pytest.raises(MeasurementError, match="before its request was sent"):
        summarize(measurement(Row([(5, 1)], sent=6)), gpus=1)
    base = measurement(Row([(5, 1), (9, 1)]))
    base.events.time_ns[1] = 4 * MS
    with pytest.raises(MeasurementError, match="negative time between"):
        summarize(base, gpus=1)
    base.events.request[1] = 7
    with pytest.raises(MeasurementError, match="belongs to no request"):
        summarize(base, gpus=1)


def test_tokens_of_the_first_event_cost_no_time_per_output_token():
    metrics, _, _ = summarize(measurement(Row([(100, 4), (130, 3), (145, 2)])), gpus=1)
    assert metrics["tpot_mean_ms"].value == pytest.approx(45 / 5)  # dividing by 9 - 1 gives 5.6
    assert metrics["tpot_pooled_ms"].value == pytest.approx(45 / 5)
    assert metrics["tokens_per_event"].value == pytest.approx(5 / 2)
