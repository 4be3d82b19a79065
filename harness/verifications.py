"""Which events of a load were verifications of drafts, and how many each of them accepted. Pure numpy.

R requests, V verifications: events whose step had at least one draft of the request to verify.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.measurement import Measurement
from paths.api import FinishReason

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Verifications:
    """One entry per verification in the order of reading, [V] each; `accepted` before the answer was cut."""

    requests: int  # of the load
    request: Ints
    time_ns: Ints
    drafted: Ints
    accepted: Ints
    tokens: Ints  # emitted
    closing: Bools  # the event that ended its request: tokens behind a stop or a limit are cut there
    other_tokens: int  # of all events that verified nothing

    def of(self, rows: Bools) -> Verifications:
        """Those of some [V]; `other_tokens` stays that of the load."""
        columns = ("request", "time_ns", "drafted", "accepted", "tokens", "closing")
        chosen = {name: getattr(self, name)[rows] for name in columns}
        return Verifications(requests=self.requests, other_tokens=self.other_tokens, **chosen)

    def per_request(self, values: Ints) -> Ints:
        """[R] sums of [V] values."""
        sums = np.bincount(self.request, weights=values, minlength=self.requests)
        return sums.astype(np.int64)

    def accepted_at(self, draft: int) -> Ints:
        """[V] 1 where draft number `draft` (from 0) was accepted: acceptance ends with a rejection."""
        return (self.accepted > draft).astype(np.int64)


def verifications(measurement: Measurement) -> Verifications | None:
    """All of a load; None for an engine that tells of no drafts."""
    events, requests = measurement.events, measurement.requests
    if events.drafted is None or events.accepted is None:
        return None
    rows = events.drafted > 0
    owner = events.request[rows].astype(np.int64)
    last = np.zeros(len(requests), dtype=np.int64)
    last[events.request] = np.arange(len(events.request))  # of several places the last one stays
    ended = (requests.finish != FinishReason.NONE)[owner] & (last[owner] == np.flatnonzero(rows))
    return Verifications(
        requests=len(requests),
        request=owner,
        time_ns=events.time_ns[rows],
        drafted=events.drafted[rows].astype(np.int64),
        accepted=events.accepted[rows].astype(np.int64),
        tokens=events.tokens[rows].astype(np.int64),
        closing=ended,
        other_tokens=int(events.tokens[~rows].sum()),
    )
