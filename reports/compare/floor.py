"""The noise floor: what a path differs from itself on this machine. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from reports.compare.effects import Floats

RESAMPLES = 2000
QUANTILE = 0.95
FEWEST_PAIRS = 3  # of an A/A run; fewer show no spread worth the name


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Losses of A/A pairs of one cell and metric, [m], as measured with both arms the same."""

    losses: tuple[float, ...]

    @property
    def df(self) -> int:
        return len(self.losses) - 1

    @cached_property
    def sd(self) -> float:
        return float(np.std(self.losses, ddof=1))

    def floor(self, pairs: int) -> float:
        """95th percentile of |mean loss| over resamples of `pairs` A/A pairs, arms swapped at random.

        The same draws every time, and no dependence on the order in which pairs were measured.
        """
        ordered = np.sort(np.asarray(self.losses, dtype=np.float64))
        chosen, signs = _draws(len(ordered), pairs)
        means = np.abs((ordered[chosen] * signs).sum(axis=1)) / pairs
        rank = math.ceil(QUANTILE * RESAMPLES) - 1
        return float(np.partition(means, rank)[rank])


@lru_cache(maxsize=64)
def _draws(available: int, pairs: int) -> tuple[npt.NDArray[np.int64], Floats]:
    rng = np.random.default_rng(0)
    chosen = rng.integers(available, size=(RESAMPLES, pairs))
    return chosen, rng.choice(np.array([-1.0, 1.0]), size=(RESAMPLES, pairs))


@dataclass(frozen=True, kw_only=True)
class NoiseFloor:
    """A/A noise by (cell, metric). `problem`: why none of it may be used (too old, another machine)."""

    noise: Mapping[tuple[str, str], Noise] = field(default_factory=dict)
    problem: str | None = None
    source: str | None = None  # file, for the reader
    measured_on: str | None = None  # date

    def of(self, cell_id: str, metric: str) -> Noise | None:
        """None without an A/A run of this cell and metric that is long enough."""
        found = None if self.problem else self.noise.get((cell_id, metric))
        return found if found is not None and len(found.losses) >= FEWEST_PAIRS else None

    def why_not(self, cell_id: str, metric: str) -> str:
        """The reason why `of` is None."""
        if self.problem:
            return self.problem
        found: Sequence[float] = getattr(self.noise.get((cell_id, metric)), "losses", ())
        if not found:
            return "no A/A run of this cell and metric"
        return f"the A/A run has {len(found)} usable pairs, {FEWEST_PAIRS} are needed"


NO_FLOOR = NoiseFloor(problem="no A/A run on this machine")
