"""The steady window: the part of a load in which its speed is read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.measurement import Measurement, Phase

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Window:
    """(start, end]: an event at the start belongs to the time before, one at the end is inside."""

    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9

    def holds(self, times_ns: Ints) -> npt.NDArray[np.bool_]:
        return (times_ns > self.start_ns) & (times_ns <= self.end_ns)

    def overlap_ns(self, starts_ns: Ints, ends_ns: Ints) -> Ints:
        """How long each interval [start, end] lies inside the window."""
        inside = np.minimum(ends_ns, self.end_ns) - np.maximum(starts_ns, self.start_ns)
        return np.maximum(inside, 0)


def active_window(starts_ns: Ints, ends_ns: Ints, threshold: int) -> Window | None:
    """From the first to the last moment at which at least `threshold` of the intervals are running."""
    when = np.concatenate((starts_ns, ends_ns))
    change = np.concatenate((np.ones(len(starts_ns), np.int64), -np.ones(len(ends_ns), np.int64)))
    order = np.lexsort((change, when))  # at one moment an end comes before a start
    when, active = when[order], np.cumsum(change[order])
    enough = np.flatnonzero(active >= threshold)
    if enough.size == 0:
        return None
    start, end = int(when[enough[0]]), int(when[enough[-1] + 1])  # the change after it ends the moment
    return Window(start, end) if end > start else None


def steady_window(measurement: Measurement) -> tuple[Window | None, str | None]:
    """The steady window, or None and why there is none.

    Closed loop: where at least 95 % of the slots hold measured requests. Open loop: from the end of the last
    warm-up request, when the load has been on for a whole request, to the send of the last measured one.
    """
    requests, times = measurement.requests, measurement.times
    measured = requests.phase == Phase.MEASURED
    if not measured.any():
        return None, measurement.aborted or "no steady window: no measured request was sent"
    if not measurement.spec.closed:
        last_warm = requests.ended_ns[~measured].max(initial=times.start_ns)
        start, end = max(int(last_warm), times.measured_ns or 0), int(requests.sent_ns[measured].max())
        if end <= start:
            return (
                None,
                "no steady window: the last request was sent before the warm-up had ended; raise measure_s",
            )
        return Window(start, end), None
    needed = measurement.spec.steady_requests
    window = active_window(requests.sent_ns[measured], requests.ended_ns[measured], needed)
    if window is None:
        return None, (
            f"no steady window: {needed} measured requests were never in flight together; "
            "raise num_prompts or measure_s"
        )
    return window, None
