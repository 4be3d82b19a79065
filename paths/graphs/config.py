"""Which graphs an engine captures: an explicit object, never the environment."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

# every size up to 64 tokens costs little padding; larger batches are bound by arithmetic
CPU_FULL_SIZES = (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)
CPU_PIECEWISE_SIZES = (*range(8, 64, 8), *range(64, 257, 16))
# a GPU is bound by launches far longer: up to the largest default batch
GPU_SIZES = (1, 2, 4, *range(8, 256, 8), *range(256, 1025, 16))


class GraphMode(StrEnum):
    """How one step was executed."""

    NONE = "NONE"
    PIECEWISE = "PIECEWISE"
    FULL = "FULL"


@dataclass(frozen=True, kw_only=True)
class GraphConfig:
    """decode: mode of a batch in which every request has the same number of tokens; mixed: of any other.

    Sizes are ascending and differ in unit: full_sizes count requests (token rows = requests × query length,
    `dispatch.uniform_tokens`), piecewise_sizes count token rows.
    """

    decode: GraphMode = GraphMode.NONE  # any mode
    mixed: GraphMode = GraphMode.NONE  # NONE or PIECEWISE
    full_sizes: tuple[int, ...] = CPU_FULL_SIZES
    piecewise_sizes: tuple[int, ...] = CPU_PIECEWISE_SIZES
    query_lens: tuple[int, ...] = (1,)  # of the FULL graphs; 1 + k where k tokens are drafted
    debug: bool = False  # assert addresses, poison padding with NaN

    @property
    def captures(self) -> bool:
        return (self.decode, self.mixed) != (GraphMode.NONE, GraphMode.NONE)
