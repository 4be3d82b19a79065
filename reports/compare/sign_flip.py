"""The exact sign-flip test: what the signs alone say, whatever the shape of the noise. Pure."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import stats

from reports.compare.effects import Floats

MOST_EXACT = 14  # 2^14 flips; beyond, as many random ones


@lru_cache(maxsize=MOST_EXACT + 1)
def _signs(n: int) -> Floats:
    """All sign vectors [2^n, n]."""
    bits = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    return 1.0 - 2.0 * bits.astype(np.float64)


def sign_flip_p(losses: Floats) -> float:
    """One-sided p of "the mean loss [n] is not above zero": share of sign flips with as large a sum."""
    n = len(losses)
    if n > MOST_EXACT:
        found = stats.permutation_test(
            (losses,),
            lambda x, axis: x.mean(axis=axis),
            permutation_type="samples",
            alternative="greater",
            n_resamples=2**MOST_EXACT,
            rng=np.random.default_rng(0),
        )
        return float(found.pvalue)
    sums = _signs(n) @ losses
    slack = 1e-12 * float(np.abs(losses).sum())  # equal sums in another order of addition
    return float(np.mean(sums >= losses.sum() - slack))


def hodges_lehmann(losses: Floats) -> float:
    """Median of the means of all pairs of losses [n], each with itself included."""
    rows, columns = _pairs(len(losses))
    means = np.sort(losses[rows] + losses[columns]) / 2.0
    middle = len(means) // 2
    return float(means[middle] if len(means) % 2 else (means[middle - 1] + means[middle]) / 2.0)


@lru_cache(maxsize=64)
def _pairs(n: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    return np.triu_indices(n)
