"""Collects what a step has to tell into the columns of `StepEvents`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from paths.api import EventDetail, FinishReason, StepEvents


@dataclass(frozen=True, kw_only=True)
class TokenColumns:
    """Events of one model step."""

    request_ids: npt.NDArray[np.int64]  # [E]
    token_ids: npt.NDArray[np.int32]  # [E], or [sum(counts)]
    finish: npt.NDArray[np.int8]  # [E] FinishReason
    counts: npt.NDArray[np.int32] | None = None  # [E] tokens of each event; None: one
    drafted: npt.NDArray[np.int32] | None = None  # [E]; None: no speculation
    accepted: npt.NDArray[np.int32] | None = None  # [E]
    details: dict[int, EventDetail] = field(default_factory=dict)  # by row


class EventLog:
    """Events since the last `take`: tokens of model steps, then the ends of aborts and refusals.

    speculates: events say how many drafts were verified for them.
    """

    def __init__(self, *, speculates: bool = False) -> None:
        self._speculates = speculates
        self._columns: list[TokenColumns] = []
        self._ends: list[tuple[int, FinishReason, EventDetail | None]] = []

    def __bool__(self) -> bool:
        return bool(self._ends or self._columns)

    def add_end(self, request_id: int, reason: FinishReason, detail: EventDetail | None = None) -> None:
        """An event without tokens that ends a request."""
        self._ends.append((request_id, reason, detail))

    def add_tokens(self, columns: TokenColumns) -> None:
        self._columns.append(columns)

    def take(self) -> StepEvents:
        """Everything so far, stamped now."""
        columns, self._columns = self._columns, []
        ends, self._ends = self._ends, []
        if len(columns) == 1 and not ends and columns[0].counts is not None:
            return _of_one_step(columns[0])
        details: dict[int, EventDetail] = {}
        count = 0
        for step in columns:
            details |= {count + row: detail for row, detail in step.details.items()}
            count += len(step.request_ids)
        details |= {count + row: detail for row, (_, _, detail) in enumerate(ends) if detail is not None}
        none = [0] * len(ends)
        speculation = {}
        if self._speculates:
            speculation = {
                name: _joined([getattr(c, name) for c in columns], none, np.int32)
                for name in ("drafted", "accepted")
            }
        counts = [
            c.counts if c.counts is not None else np.ones(len(c.request_ids), np.int32) for c in columns
        ]
        return StepEvents(
            time_ns=time.perf_counter_ns(),
            request_ids=_joined([c.request_ids for c in columns], [e[0] for e in ends], np.int64),
            token_counts=_joined(counts, none, np.int32),
            token_ids=_joined([c.token_ids for c in columns], [], np.int32),
            finish=_joined([c.finish for c in columns], [e[1] for e in ends], np.int8),
            details=details,
            **speculation,
        )


def _of_one_step(columns: TokenColumns) -> StepEvents:
    """Of a step with drafts, and nothing else to tell."""
    assert columns.counts is not None, "checked by the caller"
    return StepEvents(
        time_ns=time.perf_counter_ns(),
        request_ids=columns.request_ids,
        token_counts=columns.counts,
        token_ids=columns.token_ids,
        finish=columns.finish,
        details=columns.details,
        drafted=columns.drafted,
        accepted=columns.accepted,
    )


def _joined(columns: Sequence[npt.NDArray[Any]], more: Sequence[int], dtype: type) -> npt.NDArray[Any]:
    if len(columns) == 1 and not more and columns[0].dtype == dtype:
        return columns[0]  # one step, the usual case
    return np.concatenate([*columns, np.asarray(more, dtype=dtype)])
