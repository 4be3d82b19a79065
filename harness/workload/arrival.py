"""When requests arrive in an open loop: absolute times, drawn before the load starts."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt


def arrival_times(
    n: int, *, rate: float, burstiness: float, rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    """n ascending arrival times in seconds, [n]; the last one is n / rate.

    Gaps follow Gamma(shape=burstiness, scale=1 / (rate * burstiness)): mean 1 / rate, Poisson at shape 1,
    burstier below, smoother above, constant at infinity. They are scaled to fill n / rate exactly, so that a
    finite draw offers the configured rate and a difference from it is the client's doing.
    """
    if n < 0 or not rate > 0 or not burstiness > 0:
        raise ValueError(f"need n >= 0, rate > 0 and burstiness > 0, got {n}, {rate}, {burstiness}")
    if math.isinf(burstiness):
        return np.arange(1, n + 1) / rate
    times = np.cumsum(rng.gamma(burstiness, 1.0 / (rate * burstiness), size=n))
    # a tiny shape can draw gaps that all underflow to zero: then everything arrives at once, at the end
    return times * (n / rate / times[-1]) if n and times[-1] > 0 else np.full(n, n / rate)
