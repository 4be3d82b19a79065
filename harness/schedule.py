"""How well the client kept its own schedule. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from harness.measurement import Measurement, Phase
from harness.request_times import NS_PER_MS
from harness.window import Window


def client_lag_ms(measurement: Measurement) -> npt.NDArray[np.float64]:
    """t_send - (scheduled time or slot-free time, whichever came later) of the measured requests, in ms."""
    requests = measurement.requests
    measured = requests.phase == Phase.MEASURED
    return (requests.sent_ns - requests.ready_ns)[measured] / NS_PER_MS


def client_read_lag_ms(measurement: Measurement) -> npt.NDArray[np.float64]:
    """Read by the client - readable in the engine, of each event of the measured requests, in ms."""
    events = measurement.events
    chosen = (measurement.requests.phase == Phase.MEASURED)[events.request]
    return (events.time_ns - events.emitted_ns)[chosen] / NS_PER_MS


def achieved_rate(measurement: Measurement) -> tuple[float | None, int]:
    """Measured requests sent per second of their schedule, and how many; None in a closed loop.

    The schedule of n requests fills n / rate seconds from its start, so a client on time achieves the rate.
    """
    requests, start = measurement.requests, measurement.times.measured_ns
    sent = requests.sent_ns[requests.phase == Phase.MEASURED]
    if measurement.spec.closed or start is None or sent.size == 0 or sent.max() <= start:
        return None, int(sent.size)
    return float(sent.size / ((sent.max() - start) / 1e9)), int(sent.size)


def measured_seconds(measurement: Measurement, window: Window | None) -> float | None:
    """Length of the measured phase, or None when it did not begin.

    It ends when its last request is sent, or with the steady window where that ends later; then it drains.
    """
    times = measurement.times
    if times.measured_ns is None:
        return None
    end = times.end_ns if times.issued_ns is None else times.issued_ns
    if window is not None:
        end = max(end, window.end_ns)
    return (end - times.measured_ns) / 1e9
