"""Metrics and self-checks of speculative decoding, with the numbers worked out by hand."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest

from harness.acceptance import Speculation
from harness.checks import why_invalid
from harness.client.ledger import Ledger, Ticket
from harness.measurement import Cut, Phase, Snapshot
from harness.metrics import summarize
from harness.verifications import verifications
from paths.api import Counters, FinishReason, StepEvents
from tests.harness.measurements import MS, Row, measurement, spec

K3 = Speculation(mtp=3)


def totals(rows, *, until=float("inf")):
    """What an honest engine counts of these rows up to a time."""
    counted = Counters(accepted_at=[0] * 3, verified_at=[0] * 3)
    for row in rows:
        for (ms, tokens), (drafted, accepted) in zip(row.events, row.drafts or (), strict=True):
            if ms > until:
                continue
            counted.output_tokens += tokens
            counted.decode_tokens += drafted + 1
            if drafted:
                counted.verify_steps += 1
                counted.drafted_tokens += drafted
                counted.accepted_tokens += accepted
                counted.truncated_tokens += accepted + 1 - tokens
            for draft in range(drafted):
                counted.verified_at[draft] += 1
                counted.accepted_at[draft] += draft < accepted
    return counted


def load(*rows, window=(0.5, 1000), concurrency=1, change=None, **changes):
    """A measurement with the snapshots of an engine; `change` spoils the counters after the load."""
    at = {"before": -1, "window_start": window[0], "window_end": window[1], "after": 2000}
    snapshots = {}
    for name, ms in at.items():
        counters = totals(rows, until=ms)
        if change is not None and name in ("window_end", "after"):
            counters = change(counters)
        snapshots[name] = Snapshot(time_ns=round(ms * MS), counters=counters)
    return measurement(*rows, load=spec(concurrency=concurrency), snapshots=snapshots, **changes)


def answer(*accepted, sent=0.0, gap=10.0, drafted=3, cut=0, **changes):
    """A first token, then one verification per entry; `cut` tokens of the last one are not emitted."""
    counts = [1, *(n + 1 for n in accepted)]
    counts[-1] -= cut
    events = [(sent + gap * (at + 1), tokens) for at, tokens in enumerate(counts)]
    return Row(events, sent=sent, drafts=[(0, 0), *((drafted, n) for n in accepted)], **changes)


def judged(measured, asked=K3):
    return summarize(measured, gpus=1, asked=asked)[:2]


def test_fault_115_the_bonus_token_is_in_the_length_and_in_no_rate():
    metrics, checks = judged(load(answer(3, 1, 0)))
    assert metrics["al"].value == pytest.approx(7 / 3)
    assert metrics["al"].n == 3
    assert metrics["draft_rate"].value == pytest.approx(4 / 9)
    assert metrics["output_tokens"].value == 8  # 7 and the first
    assert metrics["spec_coverage"].value == pytest.approx(7 / 8)
    assert [checks[name].ok for name in ("drafting", "acceptance", "bonus_token")] == [True] * 3


def test_fault_117_conditional_rates_do_not_fall_with_the_position():
    """100 verifications, k = 2: the first draft accepted in 80, the second in 64."""
    rows = [
        answer(*[2] * 16, *[1] * 4, *[0] * 5, drafted=2, sent=1000.0 * at, tag=str(at)) for at in range(4)
    ]
    metrics, _ = judged(load(*rows, window=(0, 1500)), Speculation(mtp=2))
    assert metrics["draft_rate"].value == pytest.approx(0.72)
    assert [metrics[f"u_{i}"].value for i in range(2)] == pytest.approx([0.8, 0.64])
    assert [metrics[f"c_{i}"].value for i in range(2)] == pytest.approx([0.8, 0.8])
    assert "u_2" not in metrics


def test_a_draft_that_was_never_made_has_no_rate():
    metrics, checks = judged(load(answer(2, 1, drafted=2)))
    assert checks["acceptance"].ok is True
    assert metrics["u_1"].value == 0.5 and metrics["c_1"].value == 0.5
    for name in ("u_2", "c_2"):
        assert metrics[name].value is None
        assert metrics[name].reason == "no verification had so many drafts"


def test_per_request_and_token_weighted_means_differ():
    rows = [answer(3, 3, 3), answer(0, sent=50.0)]
    metrics, _ = judged(load(*rows))
    assert metrics["al_req_mean"].value == pytest.approx((4 + 1) / 2)
    assert metrics["al_req_mean"].n == 2
    assert metrics["al_token_weighted"].value == pytest.approx((4 + 9) / 4)
    assert metrics["al"].value == pytest.approx(13 / 4)


def test_the_window_is_a_difference_of_counters():
    early, inside = answer(0, 0, 0), answer(3, 3, 3, sent=100.0)
    metrics, _ = judged(load(early, inside, window=(45, 1000)))
    assert metrics["al"].value == pytest.approx(4)
    assert metrics["al"].n == 3


def test_a_verification_takes_tpot_by_length():
    metrics, _ = judged(load(answer(1, 1, 1, 1)))
    assert metrics["tpot_pooled_ms"].value == pytest.approx(5)
    assert metrics["step_ms"].value == pytest.approx(10)
    assert (metrics["step_ms"].unit, metrics["step_ms"].better) == ("ms", "down")


@pytest.mark.parametrize("accepted", [(0, 0, 0), (3, 3, 3)])
def test_a_share_of_none_or_all_has_an_interval_with_a_width(accepted):
    rows = [answer(*accepted, sent=100.0 * at, tag=str(at)) for at in range(11)]
    metrics, _ = judged(load(*rows, window=(0, 2000)))
    low, high = metrics["u_0"].ci95
    assert low <= metrics["u_0"].value <= high and high - low > 0.02
    if not accepted[0]:
        assert metrics["c_1"].value is None
        assert metrics["c_1"].reason == "no verification accepted the draft before"


def test_clustered_drafts_have_wider_intervals():
    """Ten requests accept all or nothing; ten others mix: the same rates, other evidence."""
    clustered = [answer(*[3 * (at % 2)] * 20, sent=1000.0 * at, tag=str(at)) for at in range(10)]
    mixed = [answer(*[3, 0] * 10, sent=1000.0 * at, tag=str(at)) for at in range(10)]
    wide, narrow = (judged(load(*rows, window=(0, 20000)))[0] for rows in (clustered, mixed))
    for name in ("al", "u_0", "draft_rate"):
        assert wide[name].value == pytest.approx(narrow[name].value)
        spans = [high - low for low, high in (wide[name].ci95, narrow[name].ci95)]
        assert spans[0] > 2 * spans[1], name


def test_one_request_has_no_interval():
    metrics, _ = judged(load(answer(3, 1, 0)))
    assert metrics["al"].ci95 is None and metrics["u_0"].ci95 is None


def test_intervals_cover():
    """Of 200 loads with a known rate per request, about 95 % of the intervals hold it."""
    rng, held = np.random.default_rng(0), Counter()
    for _ in range(200):
        rates = rng.beta(4, 2, 40)
        rows = [answer(*(rng.random(20) < rate).astype(int).tolist(), drafted=1, sent=0.0) for rate in rates]
        measured = load(*rows, concurrency=40, window=(0, 1000))
        metrics = judged(measured, Speculation(mtp=1))[0]
        for name, truth in (("u_0", 4 / 6), ("al", 10 / 6), ("al_req_mean", 10 / 6)):
            low, high = metrics[name].ci95
            held[name] += low <= truth <= high
    assert all(180 <= times <= 199 for times in held.values()), held


def test_without_drafts_there_is_nothing():
    measured = load(Row([(10, 1), (20, 1)], drafts=[(0, 0), (0, 0)]))
    metrics, checks = judged(measured, Speculation(mtp=0))
    assert not {"al", "u_0", "step_ms"} & metrics.keys()
    assert not {"drafting", "acceptance", "bonus_token", "forced_al"} & checks.keys()


@pytest.mark.parametrize("told", [True, False])
def test_fault_121_drafting_silently_off(told):
    drafts = [(0, 0)] * 3 if told else None
    row = Row([(10, 1), (20, 1), (30, 1)], drafts=drafts)
    measured = load(Row(row.events, drafts=[(0, 0)] * 3))
    if not told:
        events = dataclasses.replace(measured.events, drafted=None, accepted=None)
        measured = dataclasses.replace(measured, events=events)
    metrics, checks = judged(measured)
    assert checks["drafting"].ok is False
    assert "drafting is off" in why_invalid(checks)
    assert metrics["al"].value is None and metrics["step_ms"].value is None


def test_one_token_answers_cannot_draft():
    row = Row([(10, 1)], drafts=[(0, 0)])
    measured = load(row, change=lambda counted: dataclasses.replace(counted, decode_tokens=0))
    _, checks = judged(measured)
    assert checks["drafting"].ok is None


def test_drafts_that_nobody_asked_for():
    _, checks = judged(load(answer(1, 0)), Speculation(mtp=0))
    assert checks["drafting"].ok is False and "mtp=0" in checks["drafting"].detail


def spoiled(**values):
    return lambda counted: dataclasses.replace(
        counted, **{name: change(getattr(counted, name)) for name, change in values.items()}
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (spoiled(accepted_tokens=lambda n: n + 1), "accepted per position adds up to 4, not 5"),
        (spoiled(accepted_tokens=lambda n: 10), "accepted 10 of 9 drafts"),
        (spoiled(drafted_tokens=lambda n: n + 1), "verified per position adds up to 9, not 10"),
        (spoiled(accepted_at=lambda at: [1, 2, 1]), "accepted per position rises: 1, 2, 1"),
        (spoiled(verified_at=lambda at: [2, 4, 3]), "verified per position rises: 2, 4, 3"),
        (spoiled(verified_at=lambda at: [3, 3, 2, 1]), "4 positions with mtp=3"),
        (spoiled(verify_steps=lambda n: 2), "3 first drafts in 2 verifications"),
        (spoiled(accepted_at=lambda at: [4, 0, 0]), "a position was accepted more often than verified"),
        (
            spoiled(accepted_at=lambda at: [2, 2, 0]),
            "accepted at draft 2: the engine counted 2, its events add up to 1",
        ),
    ],
)  # fmt: skip
def test_sums_that_cannot_be_true(change, words):
    _, checks = judged(load(answer(3, 1, 0), change=change))
    assert checks["acceptance"].ok is False
    assert words in checks["acceptance"].detail
    assert "acceptance" in why_invalid(checks)


def test_more_accepted_than_drafted_in_an_event():
    """The tokens fit: only the drafts say that it cannot be."""
    _, checks = judged(load(answer(1, 4, 0)))
    assert checks["acceptance"].ok is False
    assert "more drafts than it had" in checks["acceptance"].detail


def test_the_bonus_token_counted_as_accepted_in_the_events():
    honest = answer(2, 1, 0)
    drafts = [(0, 0), *((drafted, accepted + 1) for drafted, accepted in honest.drafts[1:])]
    _, checks = judged(load(dataclasses.replace(honest, drafts=drafts)))
    assert checks["bonus_token"].ok is False
    assert "2 of 3 verifications did not emit accepted + 1 tokens" in checks["bonus_token"].detail
    assert "bonus_token" in why_invalid(checks)


def test_the_bonus_token_counted_as_accepted_in_the_counters():
    change = spoiled(accepted_tokens=lambda n: n + 3)  # once for each verification
    _, checks = judged(load(answer(2, 1, 0), change=change))
    assert checks["bonus_token"].ok is False
    assert "= 10, emitted 7" in checks["bonus_token"].detail


@pytest.mark.parametrize("cut", [0, 1, 3])
def test_what_is_cut_behind_a_limit_was_accepted_all_the_same(cut):
    metrics, checks = judged(load(answer(1, 3, cut=cut)))
    assert checks["bonus_token"].ok is True and checks["acceptance"].ok is True
    assert metrics["al"].value == pytest.approx(3)
    assert metrics["al_emitted"].value == pytest.approx((6 - cut) / 2)
    assert metrics["spec_coverage"].value == pytest.approx((6 - cut) / (7 - cut))
    assert metrics["step_ms"].value == pytest.approx(10)  # events are 10 ms apart, whatever is cut


def test_a_cut_that_nobody_counted():
    change = spoiled(truncated_tokens=lambda n: 0)
    _, checks = judged(load(answer(1, 3, cut=2), change=change))
    assert checks["bonus_token"].ok is False


def test_a_token_may_be_missing_only_at_the_end():
    row = answer(1, 3)
    events = [*row.events[:1], (row.events[1][0], 1), *row.events[2:]]
    _, checks = judged(load(dataclasses.replace(row, events=events)))
    assert checks["bonus_token"].ok is False


def test_requests_that_were_given_up_leave_the_load_uncompared():
    ended = answer(1, 1, sent=0.0)
    given_up = Row(
        [(15, 1), (25, 2)],
        sent=5,
        drafts=[(0, 0), (3, 1)],
        finish=FinishReason.NONE,
        cut=Cut.TIMEOUT,
        ended=90,
    )
    change = spoiled(
        verify_steps=lambda n: n + 1,
        drafted_tokens=lambda n: n + 3,
        output_tokens=lambda n: n + 1,
        verified_at=lambda at: [n + 1 for n in at],
    )
    _, checks = judged(load(ended, given_up, concurrency=2, change=change))
    assert checks["acceptance"].ok is True and "requests were given up" in checks["acceptance"].detail
    assert checks["bonus_token"].ok is None


@pytest.mark.parametrize(("target", "ok"), [(2.0, True), (2.01, True), (2.2, False), (1.0, False)])
def test_a_forced_length_is_met_or_nothing_counts(target, ok):
    rows = [answer(*[1] * 30, sent=400.0 * at, tag=str(at)) for at in range(2)]
    _, checks = judged(load(*rows), Speculation(mtp=3, forced_al=target))
    assert checks["forced_al"].ok is ok
    assert (why_invalid(checks) is None) is ok


def test_shorter_drafts_at_the_end_of_an_answer_are_no_miss():
    """1024 answers whose last verification has one draft: the cell's own length is below the forced one."""
    rows = []
    for at in range(1024):
        row = answer(2, 2, 1, tag=str(at))
        rows.append(dataclasses.replace(row, drafts=[*row.drafts[:-1], (1, 1)]))
    metrics, checks = judged(load(*rows, concurrency=1024), Speculation(mtp=3, forced_al=3.0))
    assert metrics["al"].value == pytest.approx(8 / 3)
    assert checks["forced_al"].ok is True and checks["acceptance"].ok is True
    assert "2048 verifications of 3 drafts" in checks["forced_al"].detail


def test_chance_may_miss_a_forced_length():
    rng = np.random.default_rng(1)
    rows = [answer(*rng.integers(0, 4, 20).tolist(), sent=0.0, tag=str(at)) for at in range(5)]
    _, checks = judged(load(*rows, concurrency=5), Speculation(mtp=3, forced_al=2.5))
    assert checks["forced_al"].ok is True
    _, checks = judged(load(*rows, concurrency=5), Speculation(mtp=3, forced_al=3.2))
    assert checks["forced_al"].ok is False


def test_which_events_are_verifications():
    rows = [answer(2, 0, sent=0.0), Row([(12, 1), (22, 1)], sent=1, drafts=[(0, 0), (0, 0)])]
    found = verifications(measurement(*rows, load=spec(concurrency=2)))
    assert found.request.tolist() == [0, 0] and found.accepted.tolist() == [2, 0]
    assert found.closing.tolist() == [False, True]
    assert found.other_tokens == 3
    assert verifications(measurement(Row([(10, 1)]))) is None
    nothing = verifications(measurement(Row([(10, 1)], drafts=[(0, 0)])))
    assert len(nothing.request) == 0 and nothing.per_request(nothing.accepted).tolist() == [0]


def frame(ids, drafted=None, accepted=None):
    column = None if drafted is None else np.array(drafted, dtype=np.int32)
    return StepEvents(
        time_ns=1, request_ids=np.array(ids), token_counts=np.ones(len(ids), np.int32),
        token_ids=np.zeros(len(ids), np.int32), finish=np.zeros(len(ids), np.int8), drafted=column,
        accepted=None if accepted is None else np.array(accepted, dtype=np.int32),
    )  # fmt: skip


def test_the_books_keep_drafts_beside_their_events():
    ledger = Ledger(100)
    ledger.stamp(ledger.open([Ticket(Phase.MEASURED, 0, 0)] * 3, [(4, 8)] * 3, ["a", "b", "c"]), 5)
    ledger.absorb(10, frame([100, 101, 102]))  # a step that tells of no drafts
    ledger.absorb(20, frame([102, 100], [3, 2], [1, 0]))
    ledger._give_up(np.array([0]), Cut.TIMEOUT, 25)
    ledger.absorb(30, frame([100, 101, 102], [3, 3, 3], [3, 2, 0]))  # what 100 still says is not counted
    events = ledger.events()
    assert events.request.tolist() == [0, 1, 2, 2, 0, 1, 2]
    assert events.drafted.tolist() == [0, 0, 0, 3, 2, 3, 3]
    assert events.accepted.tolist() == [0, 0, 0, 1, 0, 2, 0]


def test_the_books_of_an_engine_without_drafts_have_none():
    ledger = Ledger(100)
    ledger.stamp(ledger.open([Ticket(Phase.MEASURED, 0, 0)], [(4, 8)], ["a"]), 5)
    assert ledger.events().drafted is None
    ledger.absorb(10, frame([100]))
    assert ledger.events().drafted is None and ledger.events().accepted is None
