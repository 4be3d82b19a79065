"""Faults seen in benchmark tools, each with a small input and the numbers worked out by hand."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from harness.client.load import LoadInterrupted, run_load
from harness.measurement import Phase
from harness.metrics import summarize
from harness.preflight import load_spec
from harness.records import CellState, Metric, Record, RecordError, append_record, read_records
from harness.workload.random import RandomSource, allowed_ids
from paths.api import FinishReason, StepEvents, UserError
from tests.harness.cells import make_cell
from tests.harness.fake_endpoint import MS, Answer, FakeEndpoint, steady
from tests.harness.measurements import Row, measurement, spec


def drive(endpoint, *, osl=4, isl=5, salt=("run",), **changes):
    source = RandomSource(ids=allowed_ids(2048, [0]), isl=isl, osl=osl, seed=0, salt=salt)
    return run_load(endpoint, source, spec(osl=osl, **changes), clock=endpoint.clock)


def many(rows, **changes):
    return summarize(measurement(*rows, load=spec(concurrency=len(rows)), **changes), gpus=1)


def test_fault_001_events_carry_several_tokens():
    metrics, _, _ = many([Row([(100, 1), (130, 3), (160, 3)])])
    assert metrics["output_tokens"].value == 7
    assert metrics["tpot_mean_ms"].value == pytest.approx(10)
    assert metrics["icl_p50_ms"].value == pytest.approx(30)
    assert metrics["itl_mean_ms"].value == pytest.approx(10)
    assert metrics["itl_mean_ms"].n == 6
    assert metrics["tokens_per_event"].value == pytest.approx(3)


def test_fault_003_one_token_answers_have_no_tpot():
    answers = [[(100, 1)], [(100, 1), (300, 10)], [(100, 1), (300, 10)]]
    metrics, _, _ = summarize(measurement(*map(Row, answers), load=spec(concurrency=2)), gpus=1)
    tpot = metrics["tpot_mean_ms"]
    assert (tpot.value, tpot.n, tpot.excluded) == (pytest.approx(20), 2, 1)
    assert metrics["tpot_pooled_ms"].value == pytest.approx(20)
    assert metrics["ttft_mean_ms"].n == 3
    lonely, _, _ = many([Row([(100, 1)])])
    assert lonely["tpot_mean_ms"].value is None
    assert lonely["tpot_mean_ms"].reason == "every answer came in one event: no time per output token"


def test_fault_005_errors_are_not_fast_successes():
    rows = [Row([(100, 1), (1000, 9)]) for _ in range(9)]
    rows.append(Row([], finish=FinishReason.ERROR, ended=2.0, error="503"))
    metrics, _, statuses = summarize(measurement(*rows, load=spec(concurrency=9)), gpus=1)
    assert metrics["e2e_mean_ms"].value == pytest.approx(1000)
    assert metrics["e2e_mean_ms"].n == 9
    assert statuses == {"ok": 9, "http_error": 1}
    assert metrics["success_rate"].value == pytest.approx(0.9)
    assert metrics["success_rate"].n == 10


def test_fault_007_only_a_monotonic_clock_enters_a_duration(monkeypatch):
    wall = iter(range(10**9, 0, -2))
    monkeypatch.setattr(time, "time", lambda: next(wall))  # steps back 2 s whenever it is read
    monkeypatch.setattr(time, "time_ns", lambda: next(wall) * 10**9)
    endpoint = FakeEndpoint(steady(100, 10))
    metrics, _, _ = summarize(drive(endpoint, num_prompts=3), gpus=1)
    assert metrics["ttft_mean_ms"].value == pytest.approx(100)


@pytest.mark.parametrize(("number", "shown"), [(6, False), (100, False), (1000, True)])
def test_fault_011_p99_needs_a_thousand_samples(number, shown):
    metrics, _, _ = many([Row([(100 + i / 100, 1), (200 + i / 100, 1)]) for i in range(number)])
    assert metrics["ttft_p50_ms"].value == pytest.approx(100 + (number - 1) / 200)
    assert metrics["ttft_p50_ms"].n == number
    assert (metrics["ttft_p99_ms"].value is not None) == shown
    if not shown:
        assert metrics["ttft_p99_ms"].reason == f"n too small (n={number}, needs 1000)"
        assert metrics["ttft_p99_ms"].n == number


def test_fault_013_throughput_credits_what_arrived():
    half = [Row([(10, 1), (1000, 99)], asked=100) for _ in range(5)]
    cut = [Row([(10, 1), (1000, 29)], asked=100, finish=FinishReason.STOP) for _ in range(5)]
    loose, _, _ = many(half + cut)
    assert loose["output_tokens"].value == 650
    assert loose["out_tps_full"].value == pytest.approx(650)
    strict, checks, statuses = many(half + cut, exact=True)
    assert statuses == {"ok": 5, "early_stop": 5}
    assert not checks["osl"].ok
    assert strict["out_tps_full"].value is None
    assert strict["output_tokens"].value == 500


def test_fault_015_events_without_tokens_touch_no_time():
    metrics, _, statuses = many([Row([(100, 1), (120, 1), (400, 0)]), Row([(400, 0)])])
    assert statuses == {"ok": 1, "empty": 1}
    assert metrics["ttft_mean_ms"].value == pytest.approx(100)
    assert metrics["ttft_mean_ms"].n == 1
    assert metrics["e2e_mean_ms"].value == pytest.approx(120)
    assert metrics["icl_max_ms"].value == pytest.approx(20)


def test_fault_017_rate_does_not_drift_with_the_cost_of_sending():
    endpoint = FakeEndpoint(steady(1, 1), submit_ms=0.5)
    measurement = drive(
        endpoint, concurrency=None, request_rate=200.0, burstiness=float("inf"), num_prompts=1000
    )
    metrics, checks, _ = summarize(measurement, gpus=1)
    assert metrics["achieved_rate"].value == pytest.approx(200, rel=0.001)  # sleeping after work gives 182
    assert checks["achieved_rate"].ok is True


def test_fault_017_a_client_too_slow_for_the_rate_is_seen():
    endpoint = FakeEndpoint(steady(1, 1), submit_ms=8.0)
    # a slow client sends late requests together, so only a cap of one makes it fall behind
    measurement = drive(
        endpoint, concurrency=1, request_rate=200.0, burstiness=float("inf"), num_prompts=200, osl=1
    )
    metrics, checks, _ = summarize(measurement, gpus=1)
    assert metrics["achieved_rate"].value < 130
    assert checks["achieved_rate"].ok is False


def test_fault_019_waiting_for_the_cap_is_in_the_latency():
    endpoint = FakeEndpoint(lambda r, n: Answer(((500.0, 4),)))
    measurement = drive(
        endpoint, concurrency=1, request_rate=10.0, burstiness=float("inf"), num_prompts=8, warmup_s=0.0
    )
    requests = measurement.requests
    rows = requests.phase == Phase.MEASURED
    # the one warm-up request is sent at 100 ms and holds the only slot until 600 ms
    queue = (requests.sent_ns - requests.scheduled_ns)[rows] / MS
    assert queue.tolist() == pytest.approx([400 + 400 * i for i in range(8)])
    assert (requests.sent_ns - requests.ready_ns)[rows].tolist() == [
        0
    ] * 8  # none of it is the client's fault
    metrics, _, _ = summarize(measurement, gpus=1)
    assert metrics["queue_mean_ms"].value == pytest.approx(1800)
    assert metrics["e2e_mean_ms"].value == pytest.approx(500)
    assert metrics["e2e_sched_mean_ms"].value > 1500


def test_fault_019_hand_computed_queue():
    rows = [Row([(500 + 500 * i, 1)], sent=500.0 * i, scheduled=100.0 * i) for i in range(8)]
    load = spec(concurrency=1, request_rate=10.0)
    metrics, _, _ = summarize(measurement(*rows, load=load, measured=-1.0), gpus=1)
    assert metrics["queue_mean_ms"].value == pytest.approx(1400)
    assert metrics["queue_mean_ms"].n == 8
    # the window ends with the last send, so the last request's end is not in it: (500 + 400 i) over i = 0..6
    assert metrics["e2e_mean_ms"].value == pytest.approx(500)
    assert metrics["e2e_sched_mean_ms"].value == pytest.approx(500 + 400 * 3)
    assert metrics["ttft_sched_mean_ms"].value == pytest.approx(500 + 400 * 3)


def test_fault_021_zero_is_not_unlimited():
    for bad in (0, -1):
        with pytest.raises(UserError, match=f"concurrency={bad}: must be at least 1; null means no limit"):
            spec(concurrency=bad)
    serial = FakeEndpoint(steady(10, 1))
    drive(serial, concurrency=1)
    assert serial.peak == 1
    unlimited = FakeEndpoint(steady(1000, 1))
    drive(unlimited, concurrency=None, request_rate=100.0, burstiness=float("inf"))
    assert unlimited.peak > 90


def test_fault_023_no_hidden_queue_in_the_client():
    endpoint = FakeEndpoint(lambda r, n: Answer(((100.0, 4),)))
    requests = drive(endpoint, concurrency=150).requests
    assert len(requests) >= 450
    assert set((requests.ended_ns - requests.sent_ns).tolist()) == {100 * MS}
    assert endpoint.peak == 150


def test_fault_025_long_streams_pass_and_silent_ones_are_idle_timeouts():
    """With the limits as the product sets them: timeout_s is a silence, never the length of an answer."""
    cell = make_cell("timeout_s=5", "osl=400", "isl=5", "num_prompts=1", "warmup_s=0", "measure_s=0")
    load = load_spec(cell, first_request_id=0)

    def measured(endpoint):
        prompts = RandomSource(ids=allowed_ids(2048, [0]), isl=5, osl=load.osl, seed=0)
        return run_load(endpoint, prompts, load, clock=endpoint.clock)

    assert summarize(measured(FakeEndpoint(steady(1000, 1000))), gpus=1)[2] == {"ok": 1}

    def falls_silent(request, number):
        if number == 0:
            return Answer(((1000.0, 400),))
        return Answer(((1000.0, 1), (2000.0, 1), (3000.0, 1)), FinishReason.NONE)

    silent = measured(FakeEndpoint(falls_silent))
    assert summarize(silent, gpus=1)[2] == {"timeout": 1}
    assert silent.requests.errors[1] == "idle timeout: silent for 5 s"


def test_fault_035_prompt_ids_exclude_the_bound_and_special_ids():
    endpoint = FakeEndpoint(steady(1, 1))
    source = RandomSource(ids=allowed_ids(4, [0]), isl=500, osl=1, seed=0)
    run_load(endpoint, source, spec(osl=1, num_prompts=20), clock=endpoint.clock)
    drawn = np.concatenate([request.prompt_ids for request in endpoint.requests])
    assert len(drawn) >= 10_000
    assert set(drawn.tolist()) == {1, 2, 3}


def test_fault_037_ignored_ignore_eos_breaks_the_contract():
    endpoint = FakeEndpoint(lambda r, n: Answer(((10.0, 1), (100.0, 336)), FinishReason.STOP))
    metrics, checks, statuses = summarize(drive(endpoint, osl=1000, num_prompts=2), gpus=1)
    assert checks["osl"].ok is False
    assert checks["osl"].detail == "output length contract broken: 337 of 1000 tokens (2 of 2 requests)"
    assert statuses == {"early_stop": 2}
    for name in ("out_tps", "out_tps_full", "tpot_mean_ms", "ttft_p50_ms", "e2e_mean_ms", "icl_p50_ms"):
        assert metrics[name].reason == checks["osl"].detail, name


class CachingEndpoint(FakeEndpoint):
    """Prefill costs 1 ms per token that was not seen before, and the hits are counted."""

    def __init__(self, cache: set[bytes]) -> None:
        super().__init__(self.answer)
        self.cache = cache

    def answer(self, request, number):
        key = request.prompt_ids.tobytes()
        hit = key in self.cache
        self.cache.add(key)
        self.counts.prefix_cache_hits += len(request.prompt_ids) if hit else 0
        return Answer(((0.1 if hit else float(len(request.prompt_ids)), 1), (400.0, 3)))


def test_fault_039_prefix_cache_hits_invalidate_the_cell():
    cache: set[bytes] = set()

    def cell(name):
        measurement = drive(CachingEndpoint(cache), isl=100, salt=("run", name), num_prompts=9)
        return summarize(measurement, gpus=1)

    for name in ("first", "second"):
        metrics, checks, _ = cell(name)
        assert checks["prefix_cache"].ok is True
        assert metrics["ttft_mean_ms"].value == pytest.approx(100)
    metrics, checks, _ = cell("first")  # the same salt again: the engine knows every prompt
    assert metrics["prefix_hit_rate"].value > 0.5
    assert checks["prefix_cache"].ok is False


def test_fault_049_a_token_count_that_is_not_delivered_is_refused():
    endpoint = FakeEndpoint(steady(1, 1))
    honest = endpoint.poll

    def lazy(timeout_s):
        return [
            (now, StepEvents(**(vars(frame) | {"token_ids": frame.token_ids[:0]})))
            for now, frame in honest(timeout_s)
        ]

    endpoint.poll = lazy
    with pytest.raises(LoadInterrupted, match="announced a number of tokens that it did not send"):
        drive(endpoint)


def record(**changes) -> Record:
    values = {
        "run_id": "r", "launch_id": "l", "engine_id": "e", "cell_id": "c", "arm_id": "a", "pair": 0,
        "slot": 0, "order": 0, "label": "x", "state": CellState.OK, "requested": {}, "started_at": "t",
        "command": "x",
    }  # fmt: skip
    return Record(**(values | changes))


def test_fault_051_no_nan_and_no_infinity_in_the_records(tmp_path):
    metrics, checks, statuses = summarize(measurement(Row([(0, 1)])), gpus=1)  # no time passes at all
    file = tmp_path / "records.jsonl"
    append_record(file, record(metrics=metrics, checks=checks, statuses=statuses))
    text = file.read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    assert metrics["out_tps_full"].value is None
    assert metrics["out_tps_full"].reason == "the measured requests span no time"
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match="finite"):
            Metric(value=bad, unit="ms", better="down", n=1)
    file.write_text(text + text.replace('"pair":0', '"pair":NaN'))
    with pytest.raises(RecordError, match="line 2: not valid JSON"):
        read_records(file)


def test_fault_053_a_truncated_last_line_is_a_warning_and_any_other_an_error(tmp_path):
    file = tmp_path / "records.jsonl"
    for cell in ("c", "d"):
        append_record(file, record(cell_id=cell))
    whole = file.read_text()
    file.write_text(whole + whole[:40])
    records, warnings = read_records(file)
    assert [r.cell_id for r in records] == ["c", "d"]
    assert warnings == ["records.jsonl: last line is truncated and was left out"]
    file.write_bytes(whole.encode() + "é".encode()[:1])  # the crash came in the middle of a character
    assert read_records(file)[1] == warnings
    file.write_bytes(b"\xff\n" + whole.encode())
    with pytest.raises(RecordError, match="line 1: not valid JSON"):
        read_records(file)
    first, second = whole.splitlines()
    file.write_text(f"{first}\n{second[:40]}\n{first}\n")
    with pytest.raises(RecordError, match="line 2: not valid JSON"):
        read_records(file)


def test_fault_055_an_unknown_schema_version_is_refused(tmp_path):
    file = tmp_path / "records.jsonl"
    data = json.loads(record().model_dump_json()) | {"schema_version": "99.0.0"}
    file.write_text(json.dumps(data) + "\n")
    with pytest.raises(RecordError, match=r"records\.jsonl, line 1: schema version '99\.0\.0'"):
        read_records(file)
