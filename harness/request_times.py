"""From events to the times and token counts of each request. Pure numpy, no loop over requests.

R requests, E events, G gaps between two content events of one request.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.measurement import Measurement
from harness.statuses import classify

NO_TIME = -1  # in first_ns and last_ns of a request without content

NS_PER_MS = 1e6

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class MeasurementError(ValueError):
    """Times or counts that contradict each other: a fault of the client, never a sample."""


@dataclass(frozen=True, kw_only=True)
class RequestTimes:
    """Per request [R]: what its content events say. Events without tokens touch nothing here."""

    output_tokens: Ints
    first_event_tokens: Ints
    events: Ints
    first_ns: Ints  # NO_TIME without content
    last_ns: Ints
    status: npt.NDArray[np.int8]  # index into statuses.STATUSES
    sent_ns: Ints

    @property
    def has_content(self) -> Bools:
        return self.events > 0

    @property
    def has_tpot(self) -> Bools:
        """Tokens came after the first event; a one-token answer has no time per output token."""
        return self.output_tokens > self.first_event_tokens

    def ttft_ms(self, rows: Bools) -> npt.NDArray[np.float64]:
        """t_first - t_send of the chosen requests [R] that have content."""
        chosen = rows & self.has_content
        return (self.first_ns[chosen] - self.sent_ns[chosen]) / NS_PER_MS

    def e2e_ms(self, rows: Bools) -> npt.NDArray[np.float64]:
        """t_last - t_send: ends with the last content, not with the closing of the stream."""
        chosen = rows & self.has_content
        return (self.last_ns[chosen] - self.sent_ns[chosen]) / NS_PER_MS

    def tpot_ms(self, rows: Bools) -> npt.NDArray[np.float64]:
        """(t_last - t_first) / (N - n_first) of the chosen requests that have it."""
        chosen = rows & self.has_tpot
        tokens = self.output_tokens[chosen] - self.first_event_tokens[chosen]
        return (self.last_ns[chosen] - self.first_ns[chosen]) / tokens / NS_PER_MS


@dataclass(frozen=True, kw_only=True)
class Gaps:
    """Waits between two consecutive content events of one request, each [G]."""

    request: Ints
    end_ns: Ints
    gap_ns: Ints
    tokens: Ints  # of the event that ended the gap


def derive(measurement: Measurement) -> tuple[RequestTimes, Gaps]:
    """Times per request and gaps. Raises MeasurementError for a negative duration or an unknown request."""
    requests, events = measurement.requests, measurement.events
    total = len(requests)
    content = events.tokens > 0
    owner = events.request[content].astype(np.int64)
    if owner.size and (owner.min() < 0 or owner.max() >= total):
        raise MeasurementError("an event belongs to no request of this load")
    order = np.argsort(owner, kind="stable")  # within a request events stay in the order of reading
    owner, when = owner[order], events.time_ns[content][order]
    tokens = events.tokens[content][order].astype(np.int64)

    same = owner[1:] == owner[:-1]
    gap_ns = (when[1:] - when[:-1])[same]
    if gap_ns.size and gap_ns.min() < 0:
        raise MeasurementError("negative time between two events of one request")
    starts = np.flatnonzero(np.concatenate(([True], ~same))) if owner.size else np.zeros(0, np.int64)
    ends = np.append(starts[1:], owner.size) - 1 if owner.size else starts

    output, first_tokens, count = (np.zeros(total, dtype=np.int64) for _ in range(3))
    first, last = (np.full(total, NO_TIME, dtype=np.int64) for _ in range(2))
    if owner.size:
        heads = owner[starts]
        output[heads] = np.add.reduceat(tokens, starts)
        first_tokens[heads], count[heads] = tokens[starts], ends - starts + 1
        first[heads], last[heads] = when[starts], when[ends]
    if np.any((count > 0) & (first < requests.sent_ns)):
        raise MeasurementError("a first token was read before its request was sent")

    status = classify(requests, output, exact_lengths=measurement.exact_lengths)
    times = RequestTimes(
        output_tokens=output, first_event_tokens=first_tokens, events=count, first_ns=first, last_ns=last,
        status=status, sent_ns=requests.sent_ns,
    )  # fmt: skip
    gaps = Gaps(request=owner[1:][same], end_ns=when[1:][same], gap_ns=gap_ns, tokens=tokens[1:][same])
    return times, gaps
