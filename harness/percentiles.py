"""One percentile function for the whole harness, and the rule for how many samples a percentile needs."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

METHOD: Final = "linear"  # interpolation between the two neighbouring order statistics


def percentile(samples: npt.ArrayLike, percent: int) -> float:
    """Percentile of [n] samples by linear interpolation; always between minimum and maximum.

    Raises ValueError without samples and for a percent outside 0..100.
    """
    values = np.asarray(samples, dtype=np.float64)
    if values.size == 0:
        raise ValueError("a percentile needs at least one sample")
    if not 0 <= percent <= 100:
        raise ValueError(f"percent must lie in 0..100, got {percent}")
    return float(np.percentile(values, percent, method=METHOD))


def required_samples(percent: int) -> int:
    """Samples without which a percentile is not shown: 10/(1 - q) from q = 0.9 on, else 1.

    In whole percent, because 10 / (1 - 0.9) is a hair above 100 in binary.
    """
    if percent < 90:
        return 1
    if percent >= 100:
        raise ValueError("no number of samples supports the 100th percentile; report a maximum")
    return -(-1000 // (100 - percent))


def shortage(count: int, percent: int) -> str | None:
    """Why `count` samples do not support this percentile, or None when they do."""
    needed = required_samples(percent)
    return None if count >= needed else f"n too small (n={count}, needs {needed})"
