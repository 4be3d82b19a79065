"""Frames and the pipe endpoint against the standard library's Connection at the other end."""

import socket
import threading
import time
from multiprocessing.connection import Connection

import numpy as np
import pytest

from harness.client.endpoint import EngineDied
from harness.client.frames import FrameSocket, SendTimeout
from harness.client.pipe import PipeEndpoint
from paths.api import Counters, FinishReason, Request, SamplingParams, StartupReport, StepEvents

STARTUP = StartupReport(
    load_s=0, compile_s=0, capture_s=0, graphs=0, kv_cache_bytes=0, weight_bytes=0, kv_tokens=0
)


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    frames, connection = FrameSocket(ours), Connection(theirs.detach())
    yield frames, connection
    frames.close()
    connection.close()


@pytest.fixture
def pipe(ends):
    frames, connection = ends
    endpoint = PipeEndpoint(
        frames, startup=STARTUP, timeout_s=0.3, explain_end=lambda: EngineDied("crash", "explained")
    )
    return endpoint, connection


def events(*rows):
    """Rows of (request id, tokens, finish reason)."""
    return StepEvents(
        time_ns=1,
        request_ids=np.array([row[0] for row in rows], dtype=np.int64),
        token_counts=np.array([row[1] for row in rows], dtype=np.int32),
        token_ids=np.zeros(sum(row[1] for row in rows), dtype=np.int32),
        finish=np.array([row[2] for row in rows], dtype=np.int8),
    )


def requests(*ids):
    return [
        Request(request_id=i, prompt_ids=np.arange(3, dtype=np.int32), params=SamplingParams(max_tokens=1))
        for i in ids
    ]


# --- frames ---


@pytest.mark.parametrize("size", [0, 1, 63, 16384, 3_000_001])
def test_frames_travel_both_ways(ends, size):
    frames, connection = ends
    payload = np.arange(size, dtype=np.uint8)
    echo = threading.Thread(target=lambda: connection.send(connection.recv()))
    echo.start()
    before = time.perf_counter_ns()
    frames.send(("x", payload), 10)
    received = []
    while not received:
        received = frames.receive(10)
    echo.join()
    ((time_ns, message),) = received
    assert message[0] == "x" and np.array_equal(message[1], payload)
    assert before < time_ns <= time.perf_counter_ns()


def test_frames_split_and_joined_by_the_socket(ends):
    frames, connection = ends
    for number in range(100):
        connection.send(number)
    received = []
    while len(received) < 100:
        received += [message for _, message in frames.receive(5)]
    assert received == list(range(100))


def test_large_header_of_connection_is_understood(ends, monkeypatch):
    """Connection announces more than 2 GiB with a second, 8-byte length."""
    frames, connection = ends
    monkeypatch.setattr("harness.client.frames._LARGEST_SMALL", 10)
    frames.send("a text of more than ten bytes", 5)
    assert connection.recv() == "a text of more than ten bytes"
    ours, theirs = socket.socketpair()
    sender, receiver = FrameSocket(ours), FrameSocket(theirs)
    sender.send("again more than ten bytes", 5)
    assert [message for _, message in receiver.receive(5)] == ["again more than ten bytes"]
    sender.close(), receiver.close()


def test_both_sides_may_send_more_than_the_socket_holds(ends):
    """The engine blocks on sending events while the client sends requests: nobody waits for ever."""
    frames, connection = ends
    big = bytes(5_000_000)

    def engine():
        connection.send(big)
        assert connection.recv() == big

    thread = threading.Thread(target=engine)
    thread.start()
    frames.send(big, 20)
    thread.join(20)
    assert not thread.is_alive()
    assert frames.receive(5)[0][1] == big


def test_a_peer_that_does_not_read_is_a_time_out(ends):
    frames, _ = ends
    with pytest.raises(SendTimeout):
        frames.send(bytes(5_000_000), 0.2)


def test_what_was_sent_before_the_end_is_still_read(ends):
    frames, connection = ends
    connection.send("last")
    connection.close()
    assert not frames.closed
    assert [message for _, message in frames.receive(5)] == ["last"]
    assert frames.closed and frames.receive(0) == []


# --- endpoint ---


def test_poll_stamps_with_the_clients_clock_and_does_not_wait_when_asked_not_to(pipe):
    endpoint, connection = pipe
    assert endpoint.poll(0) == []
    connection.send(("events", events((1, 2, 0))))
    connection.send(("events", events((1, 0, FinishReason.LENGTH))))
    arrived = []
    while len(arrived) < 2:
        arrived += endpoint.poll(1)
    assert [len(step.token_ids) for _, step in arrived] == [2, 0]
    assert all(abs(time.perf_counter_ns() - time_ns) < 10**10 for time_ns, _ in arrived)


def test_requests_and_aborts_reach_the_engine(pipe):
    endpoint, connection = pipe
    endpoint.submit(requests(4, 5))
    endpoint.abort([5])
    endpoint.submit([])
    endpoint.abort([])
    endpoint.close()
    verb, sent = connection.recv()
    assert verb == "add" and [request.request_id for request in sent] == [4, 5]
    assert connection.recv() == ("abort", [5])
    assert connection.recv() == ("close",)
    assert not connection.poll(0)


def test_events_that_arrive_before_a_reply_are_kept_with_their_times(pipe):
    endpoint, connection = pipe

    def engine():
        _, token = connection.recv()
        connection.send(("events", events((1, 1, 0))))
        time.sleep(0.05)
        connection.send(("reply", token, Counters(decode_tokens=63)))

    thread = threading.Thread(target=engine)
    thread.start()
    assert endpoint.counters().decode_tokens == 63
    replied = time.perf_counter_ns()
    thread.join()
    ((time_ns, _),) = endpoint.poll(0)
    assert time_ns < replied


def test_reply_that_never_comes_is_a_time_out(pipe):
    endpoint, _ = pipe
    with pytest.raises(EngineDied, match="did not answer effective") as caught:
        endpoint.effective()
    assert caught.value.kind == "timeout"


def poll_until_death(endpoint):
    with pytest.raises(EngineDied) as caught:
        for _ in range(100):
            endpoint.poll(0.05)
    return caught.value


def test_silence_with_requests_outstanding_is_a_hang(pipe):
    endpoint, _ = pipe
    endpoint.submit(requests(1, 2))
    death = poll_until_death(endpoint)
    assert death.kind == "timeout" and "2 requests outstanding" in death.reason


def test_silence_without_requests_is_no_hang(pipe):
    endpoint, connection = pipe
    endpoint.submit(requests(1))
    connection.send(("events", events((1, 1, FinishReason.STOP))))
    for _ in range(12):
        endpoint.poll(0.05)


def test_any_event_is_a_sign_of_life(pipe):
    endpoint, connection = pipe
    endpoint.submit(requests(1, 2))
    for _ in range(10):
        time.sleep(0.1)
        connection.send(("events", events((1, 1, 0))))
        endpoint.poll(0)


@pytest.mark.parametrize("kind", ["oom", "crash"])
def test_death_announced_by_the_engine(pipe, kind):
    endpoint, connection = pipe
    connection.send(("fatal", kind, "MemoryError: no message"))
    connection.close()
    death = poll_until_death(endpoint)
    assert (death.kind, death.reason) == (kind, "MemoryError: no message")


def test_silent_death_is_explained_and_last_events_come_first(pipe):
    endpoint, connection = pipe
    connection.send(("events", events((1, 5, 0))))
    connection.close()
    ((_, last),) = endpoint.poll(1)
    assert len(last.token_ids) == 5
    assert poll_until_death(endpoint).reason == "explained"
    for action in (lambda: endpoint.submit(requests(1)), endpoint.counters, lambda: endpoint.abort([1])):
        with pytest.raises(EngineDied):
            action()
    endpoint.close()  # never raises
