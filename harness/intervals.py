"""95 % intervals of shares and means of clustered samples: tokens of one request are no independent draws.

Clusters are given as sums: x [R] successes (or amounts) and m [R] trials of each request. Pure.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

LEVEL = 0.95
Interval = tuple[float, float]
Sums = npt.NDArray[np.int64]


def quantile(clusters: int) -> float:
    """Student's t with R - 1 degrees of freedom: few clusters say little about their own spread."""
    from scipy.stats import t  # half a second, for cells with drafts alone

    return float(t.ppf((1 + LEVEL) / 2, clusters - 1))


def ratio_error(x: Sums, m: Sums) -> float | None:
    """Standard error of Σx / Σm by linearisation over clusters; None with fewer than two of them."""
    used = m > 0
    x, m = x[used], m[used]
    clusters, trials = len(m), int(m.sum())
    if clusters < 2:
        return None
    residuals = x - x.sum() / trials * m
    return math.sqrt(clusters / (clusters - 1) * float((residuals**2).sum())) / trials


def share_interval(share: float, x: Sums, m: Sums) -> Interval | None:
    """Wilson interval of a share, its trials divided by the design effect (never below 1) of the clusters."""
    error, trials = ratio_error(x, m), int(m.sum())
    if error is None:
        return None
    found = float(x.sum()) / trials
    binomial = found * (1 - found) / trials
    effective = trials / max(1.0, error**2 / binomial) if binomial > 0 else float(trials)
    return wilson(share, trials=effective, z=quantile(int(np.count_nonzero(m))))


def wilson(share: float, *, trials: float, z: float) -> Interval:
    """Score interval of a share: (p + z²/2n ± z·sqrt(p(1 - p)/n + z²/4n²)) / (1 + z²/n), within 0..1."""
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    middle, scale = share + z * z / (2 * trials), 1 + z * z / trials
    # the share itself is inside; at 0 and 1 rounding would leave it out
    return max(0.0, min(share, (middle - spread) / scale)), min(1.0, max(share, (middle + spread) / scale))


def ratio_interval(ratio: float, x: Sums, m: Sums) -> Interval | None:
    """ratio ± t · standard error of Σx / Σm."""
    error = ratio_error(x, m)
    if error is None:
        return None
    half = quantile(int(np.count_nonzero(m))) * error
    return ratio - half, ratio + half


def mean_interval(values: npt.NDArray[np.float64]) -> Interval | None:
    """Of the mean of independent values [n]; None with fewer than two."""
    if len(values) < 2:
        return None
    half = quantile(len(values)) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return float(values.mean()) - half, float(values.mean()) + half
