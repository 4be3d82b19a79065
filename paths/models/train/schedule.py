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
    rates: tuple[float, float]  # factor on all learning rates at its begin and at its end, linear in between
    rows: int
    length: int
    shots: tuple[int, int]
    drills: float = 0.0  # share of documents that hold equations alone
    invented: float = 0.6  # share of problems with invented names
    compounds: float = 0.25  # share of problems that go on as no template does
    mtp: int = 0  # how many drafts in a row the MTP layer learns
    frozen: bool = False  # the main model stays as it is
    indexing: Indexing


# 1: the main model alone on short rows. 2: with MTP. 3: long rows, attention still dense, and the indexer
# learns to follow it. 4: attention sees the indexer's selection only. 5: MTP alone, from its own states too.
STAGES = (
    Stage(
        name="dense",
        until=0.8,
        rates=(1.0, 0.35),
        rows=40,
        length=192,
        shots=(0, 1),
        drills=0.15,
        compounds=0.4,
        indexing=OFF,
    ),
    Stage(
        name="mtp",
        until=0.83,
        rates=(0.4, 0.3),
        rows=40,
        length=192,
        shots=(0, 1),
        drills=0.2,
        mtp=1,
        indexing=OFF,
    ),
    Stage(
        name="align",
        until=0.85,
        rates=(0.3, 0.2),
        rows=10,
        length=704,
        shots=(0, 5),
        drills=0.15,
        mtp=1,
        indexing=ALIGN,
    ),
    Stage(
        name="sparse",
        until=0.96,
        rates=(0.5, 0.03),
        rows=10,
        length=704,
        shots=(3, 5),
        drills=0.15,
        indexing=SPARSE,
    ),
    Stage(
        name="drafts",
        until=1.0,
        rates=(1.0, 0.03),
        rows=10,
        length=704,
        shots=(3, 5),
        mtp=3,
        frozen=True,
        indexing=SPARSE,
    ),
)
WARM_UP_STEPS = 40


def stage_of(step: int, steps: int) -> Stage:
    """The stage of a step (0, 1, …) among `steps`."""
    return next(stage for stage in STAGES if step < stage.until * steps or stage is STAGES[-1])


def rate(step: int, steps: int) -> float:
    """The factor on all learning rates."""
    stage = stage_of(step, steps)
    begin = max((other.until for other in STAGES if other.until < stage.until), default=0.0)
    done = (step / steps - begin) / (stage.until - begin)
    first, last = stage.rates
    return min(1.0, (step + 1) / WARM_UP_STEPS) * (first + (last - first) * min(1.0, done))
