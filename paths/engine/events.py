"""Collects what a step has to tell into the columns of `StepEvents`."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt

from paths.api import EventDetail, FinishReason, StepEvents


class EventLog:
    """Events since the last `take`: the step's columns, and single events of aborts and refusals."""

    def __init__(self) -> None:
        self._single: list[tuple[int, FinishReason, EventDetail | None]] = []

    def __bool__(self) -> bool:
        return bool(self._single)

    def add_end(self, request_id: int, reason: FinishReason, detail: EventDetail | None = None) -> None:
        """An event without tokens that ends a request."""
        self._single.append((request_id, reason, detail))

    def take(
        self,
        *,
        request_ids: npt.NDArray[np.int64] | None = None,
        token_ids: npt.NDArray[np.int32] | None = None,
        finish: npt.NDArray[np.int8] | None = None,
        details: dict[int, EventDetail] | None = None,
    ) -> StepEvents:
        """Everything so far, stamped now. Each row of the given columns carries one token."""
        singles, self._single = self._single, []
        ids = request_ids if request_ids is not None else np.empty(0, dtype=np.int64)
        tokens = token_ids if token_ids is not None else np.empty(0, dtype=np.int32)
        ends = finish if finish is not None else np.empty(0, dtype=np.int8)
        all_details = dict(details or {})
        for offset, (_, _, detail) in enumerate(singles):
            if detail is not None:
                all_details[len(ids) + offset] = detail
        return StepEvents(
            time_ns=time.perf_counter_ns(),
            request_ids=np.concatenate([ids, np.array([s[0] for s in singles], dtype=np.int64)]),
            token_counts=np.concatenate(
                [np.ones(len(ids), dtype=np.int32), np.zeros(len(singles), dtype=np.int32)]
            ),
            token_ids=tokens,
            finish=np.concatenate([ends, np.array([s[1] for s in singles], dtype=np.int8)]),
            details=all_details,
        )
