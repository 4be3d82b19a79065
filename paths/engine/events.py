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
    """Events of one model step, each with one token."""

    request_ids: npt.NDArray[np.int64]  # [E]
    token_ids: npt.NDArray[np.int32]  # [E]
    finish: npt.NDArray[np.int8]  # [E] FinishReason
    details: dict[int, EventDetail] = field(default_factory=dict)  # by row


class EventLog:
    """Events since the last `take`: tokens of model steps, then the ends of aborts and refusals."""

    def __init__(self) -> None:
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
        details: dict[int, EventDetail] = {}
        count = 0
        for step in columns:
            details |= {count + row: detail for row, detail in step.details.items()}
            count += len(step.token_ids)
        details |= {count + row: detail for row, (_, _, detail) in enumerate(ends) if detail is not None}
        return StepEvents(
            time_ns=time.perf_counter_ns(),
            request_ids=_joined([c.request_ids for c in columns], [e[0] for e in ends], np.int64),
            token_counts=np.concatenate([np.ones(count, np.int32), np.zeros(len(ends), np.int32)]),
            token_ids=_joined([c.token_ids for c in columns], [], np.int32),
            finish=_joined([c.finish for c in columns], [e[1] for e in ends], np.int8),
            details=details,
        )


def _joined(columns: Sequence[npt.NDArray[Any]], more: Sequence[int], dtype: type) -> npt.NDArray[Any]:
    return np.concatenate([*columns, np.asarray(more, dtype=dtype)])
