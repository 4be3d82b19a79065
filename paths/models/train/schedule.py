"""Which rows are trained on at a step, what the indexer does there, and how fast weights move."""

from __future__ import annotations

from dataclasses import dataclass

from paths.models.train.attention import Indexing
from paths.models.train.model import ALIGN, OFF, SPARSE


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A part of the training. `until` is the share of all steps at its end."""

    name: str
    until: float
    rows: int
    length: int
    shots: tuple[int, int]
    drills: float = 0.0  # share of documents that hold equations alone
    invented: float = 0.6  # share of problems with invented names
    mtp: bool
    indexing: Indexing


# 1: the main model alone on short rows. 2: with MTP. 3: long rows, attention still dense, and the indexer
# learns to follow it. 4: attention sees the indexer's selection only.
STAGES = (
    Stage(name="dense", drills=0.5, until=0.80, rows=40, length=192, shots=(0, 1), mtp=False, indexing=OFF),
    Stage(name="mtp", drills=0.3, until=0.87, rows=40, length=192, shots=(0, 1), mtp=True, indexing=OFF),
    Stage(
        name="align", drills=0.15, until=0.905, rows=10, length=704, shots=(0, 5), mtp=True, indexing=ALIGN
    ),
    Stage(
        name="sparse", drills=0.15, until=1.0, rows=10, length=704, shots=(0, 5), mtp=True, indexing=SPARSE
    ),
)
WARM_UP_STEPS = 40
DECAY_FROM = 0.55  # linear from here to LAST_RATE at the end
LAST_RATE = 0.03


def stage_of(step: int, steps: int) -> Stage:
    """The stage of a step (0, 1, …) among `steps`."""
    return next(stage for stage in STAGES if step < stage.until * steps or stage is STAGES[-1])


def rate(step: int, steps: int) -> float:
    """The factor on all learning rates."""
    warm = min(1.0, (step + 1) / WARM_UP_STEPS)
    left = max(0.0, 1.0 - step / steps) / (1.0 - DECAY_FROM)
    return warm * max(LAST_RATE, min(1.0, left))
