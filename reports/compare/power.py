"""How small an effect a number of pairs can see. Pure."""

from __future__ import annotations

import math
from functools import lru_cache

from scipy import optimize, stats

POWER = 0.80  # chance to see an effect of the size that is called detectable


@lru_cache(maxsize=4096)
def t_quantile(alpha: float, df: float) -> float:
    """Upper alpha point of Student's t; of the normal distribution with df = inf."""
    return float(stats.t.isf(alpha, df))


@lru_cache(maxsize=4096)
def detectable_per_sd(pairs: int, df: float, alpha: float) -> float:
    """Smallest mean loss, in units of the pair sd, that a one-sided t test finds in 80 % of the cases.

    Solves P(nct(df, d * sqrt(pairs)) > t) = 0.8 for d.
    """
    threshold = t_quantile(alpha, df)

    def short_of_power(shift: float) -> float:
        return float(stats.nct.sf(threshold, df, shift)) - POWER

    high = threshold + 2.0
    while short_of_power(high) < 0:  # few degrees of freedom: a heavy left tail
        high *= 1.5
    return float(optimize.brentq(short_of_power, 0.0, high)) / math.sqrt(pairs)
