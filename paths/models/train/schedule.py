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
    mtp: int = 0  # how many drafts in a row the MTP layer learns
    frozen: bool = False  # the main model stays as it is
    indexing: Indexing


# 1: the main model alone on short rows. 2: with MTP. 3: long rows, attention still dense, and the indexer
# learns to follow it. 4: attention sees the indexer's selection only. 5: MTP alone, from its own states too.
STAGES = (
    Stage(name="dense", drills=0.5, until=0.77, rows=40, length=192, shots=(0, 1), indexing=OFF),
    Stage(name="mtp", drills=0.3, until=0.83, rows=40, length=192, shots=(0, 1), mtp=1, indexing=OFF),
    Stage(name="align", drills=0.15, until=0.868, rows=10, length=704, shots=(0, 5), mtp=1, indexing=ALIGN),
    Stage(name="sparse", drills=0.15, until=0.95, rows=10, length=704, shots=(0, 5), indexing=SPARSE),
    Stage(name="drafts", until=1.0, rows=10, length=704, shots=(0, 5), mtp=3, frozen=True, indexing=SPARSE),
)
WARM_UP_STEPS = 40
DECAY_FROM = 0.5  # linear from here to LAST_RATE at the end of the stages of the main model
LAST_RATE = 0.03


def stage_of(step: int, steps: int) -> Stage:
    """The stage of a step (0, 1, …) among `steps`."""
    return next(stage for stage in STAGES if step < stage.until * steps or stage is STAGES[-1])


def rate(step: int, steps: int) -> float:
    """The factor on all learning rates; it falls once for the main model and once more for MTP alone."""
    warm = min(1.0, (step + 1) / WARM_UP_STEPS)
    share, main = step / steps, STAGES[-2].until
    left = (main - share) / (main - DECAY_FROM) if share < main else (1.0 - share) / (1.0 - main)
    return warm * max(LAST_RATE, min(1.0, left))
