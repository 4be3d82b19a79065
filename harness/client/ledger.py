"""The books of a running load: growing columns for requests and events, touched per frame, not per token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from harness.client.endpoint import EngineDied
from harness.measurement import Cut, EventColumns, Phase, RequestColumns
from paths.api import FinishReason, StepEvents

_ACTIVE, _LEAVING, _ENDED = 0, 1, 2  # LEAVING: the client gave it up, the engine has not let go of it yet

_COLUMNS: dict[str, type[np.signedinteger]] = {
    "phase": np.int8, "prompt_tokens": np.int32, "requested_tokens": np.int32, "scheduled_ns": np.int64,
    "ready_ns": np.int64, "sent_ns": np.int64, "ended_ns": np.int64, "finish": np.int8, "cut": np.int8,
    "state": np.int8, "heard_ns": np.int64, "place": np.int32,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ticket:
    """Leave to send one request."""

    phase: Phase
    scheduled_ns: int
    ready_ns: int  # when both its schedule and a slot were there


class _Frame(NamedTuple):
    """What one engine step told about the requests that are running."""

    read_ns: int
    emitted_ns: int
    rows: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int32]
    drafts: npt.NDArray[np.int32] | None  # [2, E]: drafted, accepted; None: the step told of none


class Ledger:
    """Requests are rows in the order of sending; row r has request id `first_id` + r."""

    def __init__(self, first_id: int) -> None:
        self._first_id = first_id
        self._columns: dict[str, npt.NDArray[np.signedinteger]] = {
            name: np.zeros(256, dtype=kind) for name, kind in _COLUMNS.items()
        }
        self._hashes: list[str] = []
        self._errors: dict[int, str] = {}
        self._frames: list[_Frame] = []
        self.rows = 0
        self._stamped = 0  # rows with a time of sending; an interruption may leave some without
        self.occupied = 0  # requests that hold a slot
        self.sent = dict.fromkeys(Phase, 0)
        self.running = dict.fromkeys(Phase, 0)  # sent and not ended
        self.failures_in_a_row = 0  # requests that ended without an answer since the last one that had one
        self.last_error = ""

    def open(
        self, tickets: Sequence[Ticket], lengths: Sequence[tuple[int, int]], hashes: Sequence[str]
    ) -> int:
        """Enter requests with their (prompt, requested) tokens; returns the first row. `stamp` times them."""
        start, stop = self.rows, self.rows + len(tickets)
        while stop > len(self._columns["phase"]):
            self._columns = {name: np.concatenate((c, np.zeros_like(c))) for name, c in self._columns.items()}
        rows = slice(start, stop)
        values = [
            (int(t.phase), p, asked, t.scheduled_ns, t.ready_ns)
            for t, (p, asked) in zip(tickets, lengths, strict=True)
        ]
        block = np.array(values, dtype=np.int64)
        for column, name in enumerate(
            ("phase", "prompt_tokens", "requested_tokens", "scheduled_ns", "ready_ns")
        ):
            self._columns[name][rows] = block[:, column]
        self._hashes.extend(hashes)
        self.rows = stop
        self.occupied += len(tickets)
        for ticket in tickets:
            self.sent[ticket.phase] += 1
            self.running[ticket.phase] += 1
        return start

    def stamp(self, start: int, sent_ns: int) -> None:
        """All rows from `start` on leave now."""
        for name in ("sent_ns", "heard_ns"):
            self._columns[name][start : self.rows] = sent_ns
        self._stamped = self.rows

    def absorb(self, read_ns: int, events: StepEvents) -> int:
        """Enter one frame; returns how many slots it freed. Raises EngineDied for an impossible frame."""
        rows = events.request_ids.astype(np.int64, copy=False) - self._first_id
        counts, finish = events.token_counts, events.finish
        self._refuse_impossible(rows, events)
        state = self._columns["state"][rows]
        live = state == _ACTIVE
        closing = rows[finish != FinishReason.NONE]
        for row in events.details.keys() & set(np.flatnonzero(finish == FinishReason.ERROR).tolist()):
            self._errors[int(rows[row])] = events.details[row].error or "no reason given"
        drafts = _drafts(events)
        if not live.all():  # what an abandoned request still says is not counted
            rows, counts, finish = rows[live], counts[live], finish[live]
            drafts = None if drafts is None else drafts[:, live]
        self._frames.append(_Frame(read_ns, events.time_ns, rows, counts, drafts))
        self._columns["heard_ns"][rows] = read_ns
        ended = finish != FinishReason.NONE
        if ended.any():
            self._end(rows[ended], finish[ended], read_ns)
        self._columns["state"][closing] = _ENDED
        self.occupied -= len(closing)
        return len(closing)

    def _refuse_impossible(self, rows: npt.NDArray[np.int64], events: StepEvents) -> None:
        """Raises EngineDied for a frame after which the books could not be right any more."""
        ids, counts = events.request_ids, events.token_counts
        if int(counts.sum()) != len(events.token_ids) or (len(counts) and int(counts.min()) < 0):
            raise EngineDied("crash", "the engine announced a number of tokens that it did not send")
        unknown = (rows < 0) | (rows >= self.rows)
        if unknown.any():
            raise EngineDied("crash", f"the engine answered request {ids[unknown][0]}, never sent")
        late = self._columns["state"][rows] == _ENDED
        if late.any():
            raise EngineDied("crash", f"the engine answered request {ids[late][0]} again after its end")
        # a row that occurs twice keeps only its last place
        places, order = self._columns["place"], np.arange(len(rows), dtype=np.int32)
        places[rows] = order
        twice = places[rows] != order
        if twice.any():
            raise EngineDied("crash", f"the engine answered request {ids[twice][0]} twice in one step")

    def _end(self, rows: npt.NDArray[np.int64], finish: npt.NDArray[np.int8], now_ns: int) -> None:
        columns = self._columns
        columns["finish"][rows], columns["ended_ns"][rows] = finish, now_ns
        self._leave(rows)
        good = (finish == FinishReason.STOP) | (finish == FinishReason.LENGTH)
        if good.any():
            self.failures_in_a_row = 0
            return
        self.failures_in_a_row += len(rows)
        self.last_error = self._errors.get(int(rows[-1]), self.last_error)

    def _leave(self, rows: npt.NDArray[np.int64]) -> None:
        measured = int(np.count_nonzero(self._columns["phase"][rows] == Phase.MEASURED))
        self.running[Phase.MEASURED] -= measured
        self.running[Phase.WARMUP] -= len(rows) - measured

    def overdue(self, now_ns: int, *, total_ns: int | None, idle_ns: int) -> list[int]:
        """Give up requests that took too long or fell silent after a first event; returns their ids.

        A request that still waits for its first event is only queued; `total_ns` None sets it no limit.
        """
        c = {name: column[: self.rows] for name, column in self._columns.items()}
        late = np.zeros(self.rows, dtype=bool) if total_ns is None else now_ns - c["sent_ns"] > total_ns
        silent = (c["heard_ns"] > c["sent_ns"]) & (now_ns - c["heard_ns"] > idle_ns)
        rows = np.flatnonzero((c["state"] == _ACTIVE) & (late | silent))
        for row in rows:
            self._errors[int(row)] = (
                f"no end after {total_ns / 1e9:g} s"
                if total_ns is not None and late[row]
                else f"idle timeout: silent for {idle_ns / 1e9:g} s"
            )
        self._give_up(rows, Cut.TIMEOUT, now_ns)
        self.failures_in_a_row += len(rows)
        if len(rows):
            self.last_error = self._errors[int(rows[-1])]
        return [int(row) + self._first_id for row in rows]

    def give_up_all(self, cut: Cut, now_ns: int) -> list[int]:
        """End whatever is running; returns the ids."""
        rows = np.flatnonzero(self._columns["state"][: self.rows] == _ACTIVE)
        self._give_up(rows, cut, now_ns)
        return [int(row) + self._first_id for row in rows]

    def _give_up(self, rows: npt.NDArray[np.int64], cut: Cut, now_ns: int) -> None:
        columns = self._columns
        columns["state"][rows], columns["cut"][rows], columns["ended_ns"][rows] = _LEAVING, int(cut), now_ns
        self._leave(rows)

    def leaving_since(self) -> int | None:
        """When the oldest request that the engine has not let go of was given up."""
        rows = np.flatnonzero(self._columns["state"][: self.rows] == _LEAVING)
        return int(self._columns["ended_ns"][rows].min()) if rows.size else None

    def requests(self) -> RequestColumns:
        """Copies of the columns of all requests that were sent, so that the ledger may grow on."""
        sent = self._stamped
        wanted = RequestColumns.__dataclass_fields__.keys() & self._columns.keys()
        columns = {name: self._columns[name][:sent].copy() for name in wanted}
        return RequestColumns(**columns, prompt_hash=tuple(self._hashes[:sent]), errors=dict(self._errors))

    def events(self) -> EventColumns:
        sizes = [len(frame.rows) for frame in self._frames]
        stamps = np.array([(f.read_ns, f.emitted_ns) for f in self._frames], dtype=np.int64).reshape(-1, 2)
        drafted, accepted = self._all_drafts()
        return EventColumns(
            time_ns=np.repeat(stamps[:, 0], sizes),
            emitted_ns=np.repeat(stamps[:, 1], sizes),
            request=_joined([frame.rows for frame in self._frames]),
            tokens=_joined([frame.counts for frame in self._frames]),
            drafted=drafted,
            accepted=accepted,
        )

    def _all_drafts(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]] | tuple[None, None]:
        """Drafted and accepted of every event; a step that told of none had none."""
        if all(frame.drafts is None for frame in self._frames):
            return None, None
        parts = [
            np.zeros((2, len(frame.rows)), np.int32) if frame.drafts is None else frame.drafts
            for frame in self._frames
        ]
        drafted, accepted = np.concatenate(parts, axis=1)
        return drafted, accepted


def _drafts(events: StepEvents) -> npt.NDArray[np.int32] | None:
    if events.drafted is None or events.accepted is None:
        return None
    return np.stack([events.drafted, events.accepted]).astype(np.int32, copy=False)


def _joined(arrays: Sequence[npt.NDArray[np.integer]]) -> npt.NDArray[np.int32]:
    return np.concatenate(arrays).astype(np.int32) if arrays else np.zeros(0, dtype=np.int32)
