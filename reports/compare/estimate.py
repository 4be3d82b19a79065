"""Losses of pairs of launches → mean loss, one-sided bounds and what stands beside them. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import special, stats

from reports.compare.effects import Floats
from reports.compare.floor import Noise
from reports.compare.power import detectable_per_sd, t_quantile
from reports.compare.sign_flip import hodges_lehmann, sign_flip_p

MOST_BORROWED_DF = 8  # degrees of freedom that an A/A run may lend
BORROW_BELOW = 8  # pairs from which the pairs speak for themselves
F_LEVEL = 0.99


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean loss with its interval; `lo` and `hi` are one-sided bounds at `alpha` each.

    n counts pairs, or the launches of the smaller arm when they were not interleaved.
    """

    n: int
    interleaved: bool
    alpha: float
    mean: float
    sd: float  # of the pairs, after shrinkage
    se: float
    df: float
    lo: float
    hi: float
    p_worse: float  # one-sided: no loss
    detectable: float  # mean loss that this test finds in 80 % of the cases
    losses: tuple[float, ...]  # of the pairs, in order; empty when there are none
    sign_flip_worse: float | None = None
    hodges_lehmann: float | None = None
    slot_effect: float | None = None  # loss of running second
    both_orders: bool = True  # each arm went first at least once
    shrinkage: str = "none"

    @property
    def signs(self) -> tuple[int, int, int]:
        """Pairs in which the candidate was worse, equal, better."""
        worse, better = sum(x > 0 for x in self.losses), sum(x < 0 for x in self.losses)
        return worse, len(self.losses) - worse - better, better

    def sign_flip_within(self, margin: float) -> float:
        """One-sided p of "the mean loss is at least `margin`" by sign flips."""
        return sign_flip_p(margin - np.asarray(self.losses, dtype=np.float64))


def from_pairs(losses: Floats, candidate_first: list[bool], *, alpha: float, noise: Noise | None) -> Estimate:
    """Paired estimate of losses [n], n >= 2. Few pairs borrow variance from the A/A run of the cell."""
    n = len(losses)
    sd, df, shrinkage = _spread(losses, noise)
    mean, se = float(losses.mean()), sd / math.sqrt(n)
    half = t_quantile(alpha, df) * se
    return Estimate(
        n=n,
        interleaved=True,
        alpha=alpha,
        mean=mean,
        sd=sd,
        se=se,
        df=df,
        lo=mean - half,
        hi=mean + half,
        p_worse=_p_above_zero(mean, se, df),
        detectable=(noise.sd if noise else sd) * detectable_per_sd(n, df, alpha),
        losses=tuple(float(x) for x in losses),
        sign_flip_worse=sign_flip_p(losses),
        hodges_lehmann=hodges_lehmann(losses),
        slot_effect=_slot_effect(losses, candidate_first),
        both_orders=any(candidate_first) and not all(candidate_first),
        shrinkage=shrinkage,
    )


def from_arms(baseline: Floats, candidate: Floats, *, alpha: float) -> Estimate:
    """Welch's estimate of launches [n] and [m] on the scale of losses, n, m >= 2, not run as pairs."""
    mean = float(candidate.mean() - baseline.mean())
    variances = [float(arm.var(ddof=1)) / len(arm) for arm in (baseline, candidate)]
    se, n = math.sqrt(sum(variances)), min(len(baseline), len(candidate))
    df = _welch_df(variances, [len(baseline), len(candidate)]) if se > 0 else float(n - 1)
    half = t_quantile(alpha, df) * se
    return Estimate(
        n=n,
        interleaved=False,
        alpha=alpha,
        mean=mean,
        sd=se * math.sqrt(n),
        se=se,
        df=df,
        lo=mean - half,
        hi=mean + half,
        p_worse=_p_above_zero(mean, se, df),
        detectable=se * math.sqrt(n) * detectable_per_sd(n, df, alpha),
        losses=(),
    )


def _welch_df(variances: list[float], counts: list[int]) -> float:
    """Welch and Satterthwaite's degrees of freedom; `variances` of the two means."""
    parts = sum(v**2 / (count - 1) for v, count in zip(variances, counts, strict=True))
    return sum(variances) ** 2 / parts


def _p_above_zero(mean: float, se: float, df: float) -> float:
    if se == 0:
        return 0.0 if mean > 0 else 1.0
    return float(special.stdtr(df, -mean / se))  # upper tail of Student's t


def _slot_effect(losses: Floats, candidate_first: list[bool]) -> float | None:
    """Mean of (second - first) / 2 between pairs of either order; None when one order is missing."""
    first = np.asarray(candidate_first, dtype=bool)
    if not first.any() or first.all():
        return None
    return float(losses[~first].mean() - losses[first].mean()) / 2.0


def _spread(losses: Floats, noise: Noise | None) -> tuple[float, float, str]:
    """sd, degrees of freedom and what was borrowed: s^2 = ((n-1) s_d^2 + v s_AA^2) / (n-1+v)."""
    n = len(losses)
    own = float(losses.std(ddof=1))
    if noise is None or n >= BORROW_BELOW:
        return own, float(n - 1), "none"
    if own**2 > _f_limit(n - 1, noise.df) * noise.sd**2:
        return own, float(n - 1), "refused: the pairs vary more than the A/A run"
    lent = min(noise.df, MOST_BORROWED_DF)
    df = n - 1 + lent
    variance = ((n - 1) * own**2 + lent * noise.sd**2) / df
    return math.sqrt(variance), float(df), f"{lent} degrees of freedom from the A/A run"


@lru_cache(maxsize=1024)
def _f_limit(df_pairs: int, df_noise: int) -> float:
    return float(stats.f.ppf(F_LEVEL, df_pairs, df_noise))
