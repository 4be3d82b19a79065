from __future__ import annotations

import gc
from contextlib import contextmanager

import numpy as np
import pytest

from harness.client.endpoint import EngineDied
from harness.client.ledger import Ledger
from harness.client.load import LoadCancelled, LoadInterrupted, run_load
from harness.measurement import Cut, Phase
from harness.metrics import summarize
from harness.window import steady_window
from harness.workload.dataset import DatasetSource
from harness.workload.random import RandomSource, allowed_ids
from harness.workload.source import Prompt
from paths.api import FinishReason, UserError
from tests.harness.fake_endpoint import MS, Answer, FakeEndpoint, steady
from tests.harness.measurements import spec


def prompts(osl=4, isl=5) -> RandomSource:
    return RandomSource(ids=allowed_ids(2048, [0]), isl=isl, osl=osl, seed=0, salt=("run",))


def drive(endpoint, *, osl=4, source=None, **changes):
    return run_load(endpoint, source or prompts(osl), spec(osl=osl, **changes), clock=endpoint.clock)


def staggered(request, number):
    """Lengths that differ, so that slots come free one by one."""
    return Answer(tuple((10.0 + 10.0 * i + number % 7, 1) for i in range(request.params.max_tokens)))


@pytest.mark.parametrize("concurrency", [1, 2, 16, 63, 111])
def test_closed_loop_keeps_exactly_its_concurrency(concurrency):
    endpoint = FakeEndpoint(staggered)
    measurement = drive(endpoint, concurrency=concurrency)
    assert endpoint.peak == concurrency
    assert not endpoint.in_flight
    metrics, checks, statuses = summarize(measurement, gpus=1)
    assert list(statuses) == ["ok"]
    assert statuses["ok"] >= 2 * concurrency
    assert {name: check.ok for name, check in checks.items() if check.ok is not True} == {}
    assert metrics["tpot_mean_ms"].value == pytest.approx(10)


def test_main_job_at_1024_has_a_steady_window():
    """Prefill spreads 1024 requests over a generation, as an engine with a token budget does."""

    def budgeted(request, number):
        return Answer(tuple((150.0 * (number // 64 % 16 + 1) + 250.0 * i, 1) for i in range(16)))

    endpoint = FakeEndpoint(budgeted)
    measurement = drive(endpoint, osl=16, concurrency=1024, measure_s=15.0, warmup_s=5.0)
    metrics, checks, statuses = summarize(measurement, gpus=1)
    assert statuses["ok"] >= 2048
    assert checks["window_ok"].ok, checks["window_ok"].detail
    assert checks["little"].ok, checks["little"].detail
    assert metrics["out_tps"].value > 0
    assert metrics["tpot_mean_ms"].value == pytest.approx(250)


def test_slow_generations_prolong_the_phase_until_the_window_holds():
    endpoint = FakeEndpoint(
        lambda r, n: Answer(((1000.0 + 37.0 * (n % 16), 1), (9000.0 + 400.0 * (n % 16), 3)))
    )
    measurement = drive(endpoint, concurrency=16, measure_s=1.0)
    _, checks, _ = summarize(measurement, gpus=1)
    assert checks["window_ok"].ok, checks["window_ok"].detail


def test_warm_up_is_one_wave_and_hands_over_without_draining():
    endpoint = FakeEndpoint(staggered)
    measurement = drive(endpoint, concurrency=7, warmup_s=0.0)
    requests = measurement.requests
    warm = requests.phase == Phase.WARMUP
    assert np.count_nonzero(warm) >= 7
    assert not set(np.array(requests.prompt_hash)[warm]) & set(np.array(requests.prompt_hash)[~warm])
    first_measured = requests.sent_ns[~warm].min()
    still_warm = warm & (requests.ended_ns > first_measured)
    assert still_warm.any()  # the measured phase began while warm-up requests were running
    ends = np.sort(requests.ended_ns)
    starts = np.sort(requests.sent_ns)
    # between the first send and the end of issuing, every end is answered by a send at once
    issued = measurement.times.issued_ns
    assert (starts[7:] == ends[ends < issued][: len(starts) - 7]).all()


def test_prompts_in_stock_are_not_counted_as_sent():
    """A data set with exactly as many prompts as are sent is not used up, whatever was drawn ahead."""
    part = [Prompt(np.array([i], dtype=np.int32), 4, f"{i}") for i in range(6)]
    measurement = drive(FakeEndpoint(steady(1, 1)), source=DatasetSource(part), concurrency=2, num_prompts=4)
    assert len(measurement.requests) == 6
    assert summarize(measurement, gpus=1)[1]["unique_prompts"].ok is True
    more = drive(FakeEndpoint(steady(1, 1)), source=DatasetSource(part), concurrency=2, num_prompts=5)
    assert summarize(more, gpus=1)[1]["unique_prompts"].ok is False


def test_warm_up_lasts_as_long_as_asked():
    measurement = drive(FakeEndpoint(steady(10, 10)), concurrency=2, warmup_s=3.0)
    assert measurement.times.measured_ns - measurement.times.start_ns >= 3_000 * MS
    assert measurement.times.measured_ns - measurement.times.start_ns < 3_100 * MS


@pytest.mark.parametrize("number", [1, 2, 7, 100])
def test_num_prompts_is_exact(number):
    measurement = drive(FakeEndpoint(staggered), concurrency=3, num_prompts=number)
    assert np.count_nonzero(measurement.requests.phase == Phase.MEASURED) == number
    assert summarize(measurement, gpus=1)[2] == {"ok": number}


def test_counters_are_read_at_the_window_and_while_idle():
    endpoint = FakeEndpoint(staggered)
    measurement = drive(endpoint, concurrency=16)
    names = ("before", "window_start", "window_end", "after")
    times = [getattr(measurement, name).time_ns for name in names]
    assert times == sorted(times)
    window, _ = steady_window(measurement)
    assert times[1] - window.start_ns <= 10 * MS  # the next frame at the latest
    assert abs(times[2] - window.end_ns) <= 10 * MS
    assert measurement.before.counters.output_tokens == 0
    assert measurement.after.counters.output_tokens == int(measurement.events.tokens.sum())


def test_requests_ask_for_exact_lengths_greedily():
    endpoint = FakeEndpoint(steady(1, 1))
    drive(endpoint, osl=5, num_prompts=1, first_request_id=1000)
    params = endpoint.requests[-1].params
    assert (params.max_tokens, params.min_tokens, params.ignore_eos, params.temperature) == (5, 5, True, 0.0)
    assert [request.request_id for request in endpoint.requests] == [1000, 1001]


def test_a_request_that_never_ends_times_out_and_frees_its_slot():
    def one_sticks(request, number):
        ends = FinishReason.NONE if number == 3 else FinishReason.LENGTH
        return Answer(((5.0, 1), (10.0, 3)), ends)

    endpoint = FakeEndpoint(one_sticks)
    measurement = drive(endpoint, concurrency=1, num_prompts=5, request_timeout_s=2.0)
    _, _, statuses = summarize(measurement, gpus=1)
    assert statuses == {"ok": 4, "timeout": 1}
    late = int(np.flatnonzero(measurement.requests.cut == Cut.TIMEOUT)[0])
    assert late == 3
    assert measurement.requests.errors[late] == "no end after 2 s"
    waited = measurement.requests.ended_ns[late] - measurement.requests.sent_ns[late]
    assert 2_000 * MS < waited <= 2_100 * MS


def test_a_long_queue_is_not_a_timeout():
    """200 requests, one at a time, a second each: the last waits 3 minutes at a limit of 2 s of silence."""
    endpoint = FakeEndpoint(lambda r, n: Answer(((500.0, 1), (1000.0, 3))), parallel=1)
    measurement = drive(endpoint, concurrency=200, num_prompts=200, timeout_s=2.0)
    assert summarize(measurement, gpus=1)[2] == {"ok": 200}


def test_the_profile_says_how_much_is_sent():
    for waves, least in ((1, 2), (2, 32), (3, 5)):
        measurement = drive(
            FakeEndpoint(staggered), concurrency=1, measure_s=0.0, warmup_waves=waves, min_requests=least
        )
        phases = measurement.requests.phase
        assert np.count_nonzero(phases == Phase.WARMUP) == waves
        assert np.count_nonzero(phases == Phase.MEASURED) >= least
    assert np.count_nonzero(phases == Phase.MEASURED) < 32


def test_asking_for_counters_holds_no_free_slot():
    """An engine that takes 50 ms to answer: the slot that came free before is refilled first."""
    endpoint = FakeEndpoint(staggered)
    ask = endpoint.counters

    def slow():
        endpoint.clock.now_ns += 50 * MS
        return ask()

    endpoint.counters = slow
    measurement = drive(endpoint, concurrency=2)
    assert len(endpoint.snapshots) == 4
    requests = measurement.requests
    assert (requests.sent_ns == requests.ready_ns).all()


def test_tokens_of_an_abandoned_request_are_not_counted():
    def stutters(request, number):
        if number != 1:
            return Answer(((5.0, 4),))
        return Answer(((5.0, 1), (3_000.0, 1), (3_001.0, 1), (3_002.0, 1)))

    endpoint = FakeEndpoint(stutters, deaf=True)  # the engine does not heed the abort and goes on
    measurement = drive(endpoint, concurrency=2, num_prompts=8, timeout_s=1.9)
    metrics, _, statuses = summarize(measurement, gpus=1)
    assert statuses["ok"] == metrics["requests_ok"].value
    assert int(measurement.events.tokens[measurement.events.request == 1].sum()) == 1


def test_an_engine_that_does_not_acknowledge_an_abort_hangs():
    endpoint = FakeEndpoint(lambda r, n: Answer(((5.0, 1), (6.0, 3)), FinishReason.NONE), deaf=True)
    with pytest.raises(
        LoadInterrupted, match=r"engine hangs: it does not end 2 requests .*no end after 2 s"
    ) as caught:
        drive(endpoint, concurrency=2, request_timeout_s=2.0, timeout_s=5.0)
    assert caught.value.kind == "timeout"
    assert (caught.value.measurement.requests.cut == Cut.TIMEOUT).all()


def test_a_dead_engine_leaves_what_had_arrived():
    endpoint = FakeEndpoint(staggered, dies_ms=500)
    with pytest.raises(LoadInterrupted, match="exit code 1") as caught:
        drive(endpoint, concurrency=3, measure_s=10)
    assert isinstance(caught.value, EngineDied)
    assert caught.value.kind == "crash"
    _, checks, statuses = summarize(caught.value.measurement, gpus=1)
    assert statuses["disconnect"] == 3
    assert statuses["ok"] > 10
    assert checks["tokens"].ok is None


def test_ctrl_c_leaves_what_had_arrived_and_restores_the_collector():
    def interrupt(now_ns):
        if now_ns > 1_500 * MS:
            raise KeyboardInterrupt

    endpoint = FakeEndpoint(staggered, on_poll=interrupt)
    assert gc.isenabled()
    with pytest.raises(LoadCancelled) as caught:
        drive(endpoint, concurrency=3, measure_s=10)
    assert isinstance(caught.value, KeyboardInterrupt)
    assert gc.isenabled()
    assert summarize(caught.value.measurement, gpus=1)[2]["cancelled"] == 3


def test_a_request_that_was_opened_but_not_sent_leaves_no_row():
    endpoint, booked = FakeEndpoint(staggered), []

    def interrupted_between(ledger, start, sent_ns):
        booked.append(ledger.rows)
        if len(booked) == 3:
            raise KeyboardInterrupt
        stamp(ledger, start, sent_ns)

    stamp = Ledger.stamp
    with pytest.MonkeyPatch.context() as patch, pytest.raises(LoadCancelled) as caught:
        patch.setattr(Ledger, "stamp", interrupted_between)
        drive(endpoint, concurrency=3, measure_s=10)
    requests = caught.value.measurement.requests
    assert len(requests) == len(requests.prompt_hash) == booked[1] < booked[2]
    assert (requests.sent_ns > 0).all()
    assert not caught.value.finished


def test_an_interruption_after_the_last_answer_finds_a_finished_load():
    @contextmanager
    def late():
        yield
        raise KeyboardInterrupt

    endpoint = FakeEndpoint(staggered)
    with pytest.raises(LoadCancelled) as caught:
        run_load(endpoint, prompts(), spec(osl=4), clock=endpoint.clock, interruptions=late)
    assert caught.value.finished
    assert list(summarize(caught.value.measurement, gpus=1)[2]) == ["ok"]


def test_the_collector_rests_during_the_load_only():
    seen = []
    endpoint = FakeEndpoint(staggered, on_poll=lambda now: seen.append(gc.isenabled()))
    drive(endpoint, num_prompts=2)
    assert not any(seen)
    assert gc.isenabled()


def test_an_engine_that_refuses_everything_is_given_up():
    endpoint = FakeEndpoint(lambda r, n: Answer(((1.0, 0),), FinishReason.ERROR))
    measurement = drive(endpoint, concurrency=3, warmup_s=5.0, measure_s=60.0)
    assert len(measurement.requests) < 50
    assert measurement.aborted.endswith("requests failed in a row (refused: too long)")
    metrics, _, statuses = summarize(measurement, gpus=1)
    assert list(statuses) == ["http_error"]
    assert metrics["success_rate"].value == 0
    assert metrics["out_tps"].reason == measurement.aborted


def test_some_failures_do_not_end_the_load():
    def every_third(request, number):
        return Answer(((1.0, 0),), FinishReason.ERROR) if number % 3 == 0 else Answer(((5.0, 4),))

    measurement = drive(FakeEndpoint(every_third), concurrency=2, num_prompts=63)
    metrics, _, statuses = summarize(measurement, gpus=1)
    assert measurement.aborted is None
    assert sum(statuses.values()) == 63
    assert metrics["success_rate"].value == pytest.approx(statuses["ok"] / 63)
    assert metrics["success_rate"].n == 63


def test_a_frame_that_cannot_be_true_is_a_crash():
    endpoint = FakeEndpoint(steady(1, 1))
    honest = endpoint.poll

    def forged(timeout_s):
        frames = honest(timeout_s)
        for _, frame in frames:
            frame.request_ids[:] += 77
        return frames

    endpoint.poll = forged
    with pytest.raises(LoadInterrupted, match="answered request 77, never sent"):
        drive(endpoint)


def test_progress_names_the_phases_in_order():
    seen: list[tuple[str, float]] = []
    endpoint = FakeEndpoint(steady(10, 100))
    run_load(
        endpoint, prompts(), spec(osl=4, concurrency=2, warmup_s=2.0, measure_s=3.0),
        on_progress=lambda phase, share: seen.append((phase, share)), clock=endpoint.clock,
    )  # fmt: skip
    assert list(dict.fromkeys(phase for phase, _ in seen))[:2] == ["warm-up", "measure"]
    for name in ("warm-up", "measure"):
        shares = [share for phase, share in seen if phase == name]
        assert shares == sorted(shares)
    assert all(0 <= share <= 1 for _, share in seen)


def open_loop(endpoint, **changes):
    values = {"concurrency": None, "request_rate": 100.0, "burstiness": float("inf")}
    return drive(endpoint, **(values | changes))


def test_open_loop_sends_on_schedule_whatever_the_engine_does():
    endpoint = FakeEndpoint(steady(700, 100))  # each request takes a second: about 100 in flight
    measurement = open_loop(endpoint, measure_s=3.0, warmup_s=0.5)
    requests = measurement.requests
    assert np.count_nonzero(requests.phase == Phase.WARMUP) == 50
    assert np.count_nonzero(requests.phase == Phase.MEASURED) == 300
    assert np.diff(requests.scheduled_ns).tolist() == [10 * MS] * 349
    assert (requests.sent_ns == requests.scheduled_ns).all()
    assert endpoint.peak == 100
    metrics, checks, _ = summarize(measurement, gpus=1)
    assert metrics["achieved_rate"].value == pytest.approx(100)
    assert metrics["out_tps"].value == pytest.approx(400, rel=0.02)
    assert metrics["ttft_sched_mean_ms"].value == pytest.approx(700)
    assert checks["achieved_rate"].ok is True
    assert "little" not in checks


@pytest.mark.parametrize("burstiness", [0.3, 1.0])
def test_bursty_arrivals_keep_the_rate(burstiness):
    measurement = open_loop(FakeEndpoint(steady(10, 1)), burstiness=burstiness, measure_s=2.0)
    metrics, checks, _ = summarize(measurement, gpus=1)
    assert metrics["achieved_rate"].value == pytest.approx(100, rel=0.01)
    assert checks["achieved_rate"].ok is True
    assert len(set(np.diff(measurement.requests.scheduled_ns).tolist())) > 50


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"concurrency": 0}, "concurrency=0: must be at least 1"),
        ({"concurrency": -1}, "concurrency=-1: must be at least 1"),
        ({"concurrency": None}, "no load: set concurrency"),
        ({"request_rate": 0.0}, "request_rate=0.0: must be above 0"),
        ({"request_rate": float("inf")}, "request_rate=inf: must be above 0 and finite"),
        ({"burstiness": 0.0}, "burstiness=0.0: must be above 0"),
        ({"burstiness": float("nan")}, "burstiness=nan: must be above 0"),
        ({"num_prompts": 0}, "num_prompts=0: must be at least 1"),
        ({"osl": 0}, "osl=0: must be at least 1"),
        ({"measure_s": -1.0}, "measure_s=-1.0: must be 0 or more"),
        ({"warmup_s": float("nan")}, "warmup_s=nan: must be 0 or more"),
        ({"timeout_s": 0.0}, "timeout_s=0.0: must be above 0"),
        ({"request_timeout_s": 0.0}, "request_timeout_s=0.0: must be above 0"),
    ],
)
def test_impossible_loads_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        spec(**changes)
