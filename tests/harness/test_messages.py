"""An engine is foreign code: what it says is checked before anything is done with it."""

import dataclasses
import math
import socket

import numpy as np
import pytest

from harness.client.endpoint import EngineDied
from harness.client.frames import FrameSocket
from harness.client.ledger import Ledger, Ticket
from harness.client.messages import MalformedMessage, checked
from harness.client.pipe import PipeEndpoint
from harness.measurement import Phase
from paths.api import (
    Counters,
    EngineConfig,
    EventDetail,
    FinishReason,
    ModelSource,
    StartupReport,
    StepEvents,
)
from paths.scripted import ScriptedEngine

STARTUP = StartupReport(
    load_s=0.0, compile_s=0.0, capture_s=0.0, graphs=0, kv_cache_bytes=0, weight_bytes=0, kv_tokens=0
)
EFFECTIVE = ScriptedEngine(
    EngineConfig(path="scripted", impl="", model=ModelSource(name="m", hf_config={}, checkpoint="dummy"))
).effective()


def events(ids=(100, 101), counts=(1, 2), finish=(0, 2), **changes):
    sound = StepEvents(
        time_ns=1,
        request_ids=np.array(ids, dtype=np.int64),
        token_counts=np.array(counts, dtype=np.int32),
        token_ids=np.zeros(max(0, sum(counts)), dtype=np.int32),
        finish=np.array(finish, dtype=np.int8),
    )
    return dataclasses.replace(sound, **changes)


def drafts(*values):
    return np.array(values, dtype=np.int32)


@pytest.mark.parametrize(
    "message",
    [
        ("progress", "loading"),
        ("ready", STARTUP, EFFECTIVE, "nonce", 1),
        ("events", events()),
        ("events", events(finish=(0, 4), details={1: EventDetail(error="refused")})),
        ("events", events(drafted=drafts(0, 3), accepted=drafts(0, 1))),
        ("events", events((), (), ())),
        ("reply", 1, Counters()),
        ("reply", 1, Counters(cpu_seconds=1)),
        ("reply", 1, Counters(graph_misses={"too large": 3}, blocking_waits=1)),
        (
            "ready",
            STARTUP,
            dataclasses.replace(EFFECTIVE, graphs=26, breaks_per_layer=1, waits_per_step=0.0),
            "n",
            1,
        ),
        ("fatal", "oom", "words"),
    ],
    ids=lambda message: message[0],
)
def test_what_the_protocol_knows_passes(message):
    assert checked(message) is message


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (None, "NoneType None is not a message"),
        ((), "is not a message"),
        (("what", 1), "is not a message"),
        (("events", [1, 2]), "'events' carries"),
        (("events",), "'events' carries"),
        (("events", events(drafted=drafts(0, 3))), "events.accepted is NoneType None, not one column"),
        (("events", events(accepted=drafts(0, 3))), "events.drafted is NoneType None, not one column"),
        (("events", events(drafted=drafts(3), accepted=drafts(0, 1))), "events.drafted has 1 rows for 2"),
        (("events", events(drafted=drafts(3, 3), accepted=drafts(0, -1))), "events.accepted holds -1"),
        (
            ("events", events(drafted=drafts(3, 3), accepted=np.array([0.0, 1.0]))),
            "one column of whole numbers",
        ),
        (("events", events(drafted=drafts(3, 3), accepted=[0, 1])), "one column of whole numbers"),
        (("fatal", "crash"), "'fatal' carries"),
        (("fatal", "weird", "x"), "known: oom, crash"),
        (("ready", None, EFFECTIVE, "nonce", 1), "'ready' carries"),
        (("ready", dataclasses.replace(STARTUP, load_s=math.nan), EFFECTIVE, "n", 1), "StartupReport.load_s"),
        (("ready", STARTUP, dataclasses.replace(EFFECTIVE, kernels={"a": {1}}), "n", 1), "Effective.kernels"),
        (("ready", STARTUP, dataclasses.replace(EFFECTIVE, fallbacks="abc"), "n", 1), "Effective.fallbacks"),
        (("reply", 1, Counters(preemptions="three")), "Counters.preemptions is str 'three'"),
        (("reply", 1, Counters(output_tokens=-5)), "Counters.output_tokens is int -5"),
        (("reply", 1, Counters(steps={"FULL": None})), "Counters.steps"),
        (("reply", 1, Counters(graph_misses={"too large": -1})), "Counters.graph_misses"),
        (("reply", 1, Counters(graph_misses={None: 1})), "Counters.graph_misses"),
        (("reply", 1, Counters(blocking_waits=0.5)), "Counters.blocking_waits is float"),
        (("reply", 1, Counters(host_device_copies=None)), "Counters.host_device_copies"),
        (("reply", 1, Counters(output_waits=True)), "Counters.output_waits"),
        (
            ("ready", dataclasses.replace(STARTUP, graph_memory_bytes=-1), EFFECTIVE, "n", 1),
            "graph_memory_bytes",
        ),
        (("ready", dataclasses.replace(STARTUP, kernel_build_s=None), EFFECTIVE, "n", 1), "kernel_build_s"),
        (("ready", STARTUP, dataclasses.replace(EFFECTIVE, graphs=None), "n", 1), "Effective.graphs"),
        (
            ("ready", STARTUP, dataclasses.replace(EFFECTIVE, breaks_per_layer=math.inf), "n", 1),
            "breaks_per_layer",
        ),
        (("ready", STARTUP, dataclasses.replace(EFFECTIVE, copies_per_step="2"), "n", 1), "copies_per_step"),
        (("ready", STARTUP, dataclasses.replace(EFFECTIVE, waits_per_step=-0.1), "n", 1), "waits_per_step"),
        (("events", events(finish=(0, 9))), "finish holds 9"),
        (("events", events(finish=(0, -1))), "finish holds -1"),
        (("events", events(request_ids=np.array([0.0, 1.0]))), "events.request_ids"),
        (("events", events(token_counts=[1, 2])), "events.token_counts is list"),
        (("events", events(finish=np.zeros(0, dtype=np.int8))), "equally long"),
        (("events", events(counts=(5, -2))), "token_counts holds -2"),
        (("events", events(token_ids=np.zeros(7, dtype=np.int32))), "3 tokens are announced, 7 were sent"),
        (("events", events(time_ns=None)), "events.time_ns"),
        (("events", events(time_ns=-5)), "events.time_ns"),
        (("events", events(details={0: EventDetail(error=5)})), "the error of an event is int 5"),
        (("events", events(details={0: "text"})), "not an EventDetail"),
        (("events", events(details=None)), "not a dictionary"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_it_does_not_know_is_named(message, words):
    with pytest.raises(MalformedMessage) as caught:
        checked(message)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        (b"\x00\x00\x00\x05hello", "cannot be unpickled"),
        (b"\xff\xff\xff\xfehello", "announces -2 bytes"),
        (b"\xff\xff\xff\xff\x7f\xff\xff\xff\xff\xff\xff\xff", "announces 9223372036854775807 bytes"),
    ],
)
def test_noise_on_the_connection_is_the_death_of_the_engine(noise, words):
    ours, theirs = socket.socketpair()
    frames = FrameSocket(ours)
    pipe = PipeEndpoint(frames, startup=STARTUP, timeout_s=5.0, explain_end=lambda: EngineDied("crash", "no"))
    with theirs:
        theirs.sendall(noise)
        for _ in range(2):  # it stays dead
            with pytest.raises(EngineDied, match=words):
                pipe.counters()
    frames.close()


def test_an_answer_of_another_kind_is_the_death_of_the_engine():
    ours, theirs = socket.socketpair()
    frames, peer = FrameSocket(ours), FrameSocket(theirs)
    pipe = PipeEndpoint(frames, startup=STARTUP, timeout_s=5.0, explain_end=lambda: EngineDied("crash", "no"))
    peer.send(("reply", 1, None), 1.0)
    with pytest.raises(EngineDied, match="answered counters with NoneType"):
        pipe.counters()
    frames.close()
    peer.close()


def test_a_process_that_ended_is_noticed_although_its_connection_is_open():
    ours, theirs = socket.socketpair()
    frames, peer = FrameSocket(ours), FrameSocket(theirs)
    pipe = PipeEndpoint(
        frames,
        startup=STARTUP,
        timeout_s=60.0,
        explain_end=lambda: EngineDied("crash", "exited with code 7"),
        exited=lambda: True,
    )
    peer.send(("events", events()), 1.0)
    assert len(pipe.poll(0.0)) == 1  # what it said last comes first
    with pytest.raises(EngineDied, match="exited with code 7"):
        pipe.poll(0.0)
    frames.close()
    peer.close()


def ledger_of(number):
    ledger = Ledger(100)
    tickets = [Ticket(Phase.MEASURED, 0, 0)] * number
    ledger.stamp(ledger.open(tickets, [(1, 4)] * number, ["h"] * number), 0)
    return ledger


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([events((100, 100), (1, 1), (0, 0))], "request 100 twice in one step"),
        ([events((100, 101, 101), (1, 1, 0), (0, 2, 2))], "request 101 twice in one step"),
        ([events((100,), (1,), (2,)), events((100,), (1,), (0,))], "request 100 again after its end"),
        ([events((100,), (1,), (2,)), events((100,), (0,), (2,))], "request 100 again after its end"),
        ([events((102,), (1,), (0,))], "request 102, never sent"),
        ([events((99,), (1,), (0,))], "request 99, never sent"),
        ([events((100, 101), (6, -2), (0, 0))], "a number of tokens that it did not send"),
    ],
)
def test_answers_that_would_spoil_the_books_are_refused(frames, words):
    ledger = ledger_of(2)
    with pytest.raises(EngineDied, match=words):
        for read_ns, frame in enumerate(frames):
            ledger.absorb(read_ns, frame)
    assert ledger.occupied >= 0


def test_every_slot_is_freed_once():
    ledger = ledger_of(2)
    assert ledger.absorb(1, events((100, 101), (1, 2), (0, FinishReason.LENGTH))) == 1
    assert ledger.absorb(2, events((100,), (1,), (FinishReason.LENGTH,))) == 1
    assert ledger.occupied == 0
