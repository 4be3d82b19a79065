"""Small measurements written down by hand: milliseconds in, columns out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from harness.measurement import (
    Cut,
    EventColumns,
    LoadSpec,
    Measurement,
    Phase,
    PhaseTimes,
    RequestColumns,
    Snapshot,
)
from paths.api import FinishReason

MS = 1_000_000


@dataclass
class Row:
    """One request: sent at `sent` ms; events are (ms, tokens) on the same clock.

    drafts: (drafted, accepted) of each event, in a load whose engine speculates.
    """

    events: Sequence[tuple[float, int]] = ()
    sent: float = 0.0
    asked: int | None = None  # None: as many as arrived
    prompt: int = 4
    finish: FinishReason = FinishReason.LENGTH
    ended: float | None = None  # None: with the last event
    scheduled: float | None = None
    ready: float | None = None
    phase: Phase = Phase.MEASURED
    cut: Cut = Cut.NONE
    error: str | None = None
    tag: str = field(default="")
    drafts: Sequence[tuple[int, int]] | None = None


def spec(**changes) -> LoadSpec:
    values = {
        "concurrency": 1, "request_rate": None, "burstiness": 1.0, "num_prompts": None, "measure_s": 1.0,
        "warmup_s": 0.0, "timeout_s": 60.0, "osl": 16, "seed": 0,
    }  # fmt: skip
    return LoadSpec(**(values | changes))


def measurement(
    *rows: Row,
    load: LoadSpec | None = None,
    exact: bool = False,
    issued: float | None = None,
    measured: float = 0.0,
    snapshots: dict[str, Snapshot] | None = None,
    repeated: int = 0,
    aborted: str | None = None,
) -> Measurement:
    def ns(values: Sequence[float]) -> np.ndarray:
        return np.rint(np.array(values, dtype=np.float64) * MS).astype(np.int64)

    ended = [
        row.ended if row.ended is not None else (row.events[-1][0] if row.events else row.sent)
        for row in rows
    ]
    told = sorted(
        (ms, index, tokens, *(row.drafts[at] if row.drafts is not None else (0, 0)))
        for index, row in enumerate(rows)
        for at, (ms, tokens) in enumerate(row.events)
    )
    events = [event[:3] for event in told]
    drafts = np.array([event[3:] for event in told], dtype=np.int32).reshape(-1, 2)
    speculates = any(row.drafts is not None for row in rows)
    requests = RequestColumns(
        phase=np.array([row.phase for row in rows], dtype=np.int8),
        prompt_tokens=np.array([row.prompt for row in rows], dtype=np.int32),
        requested_tokens=np.array(
            [sum(n for _, n in row.events) if row.asked is None else row.asked for row in rows],
            dtype=np.int32,
        ),
        scheduled_ns=ns([row.sent if row.scheduled is None else row.scheduled for row in rows]),
        ready_ns=ns([row.sent if row.ready is None else row.ready for row in rows]),
        sent_ns=ns([row.sent for row in rows]),
        ended_ns=ns(ended),
        finish=np.array([row.finish for row in rows], dtype=np.int8),
        cut=np.array([row.cut for row in rows], dtype=np.int8),
        prompt_hash=tuple(row.tag or f"{index:016x}" for index, row in enumerate(rows)),
        errors={index: row.error for index, row in enumerate(rows) if row.error is not None},
    )
    last_send = max((row.sent for row in rows), default=0.0)
    times = PhaseTimes(
        start_ns=0,
        measured_ns=round(measured * MS),
        issued_ns=round((last_send if issued is None else issued) * MS),
        end_ns=round(max(ended, default=0.0) * MS),
    )
    return Measurement(
        spec=load or spec(),
        exact_lengths=exact,
        requests=requests,
        events=EventColumns(
            time_ns=ns([ms for ms, _, _ in events]),
            emitted_ns=ns([ms for ms, _, _ in events]),
            request=np.array([index for _, index, _ in events], dtype=np.int32),
            tokens=np.array([tokens for _, _, tokens in events], dtype=np.int32),
            drafted=drafts[:, 0] if speculates else None,
            accepted=drafts[:, 1] if speculates else None,
        ),
        times=times,
        repeated_prompts=repeated,
        aborted=aborted,
        **(snapshots or {}),
    )
