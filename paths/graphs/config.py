"""Which graphs an engine captures: an explicit object, never the environment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

# every size up to 64 tokens costs little padding; larger batches are bound by arithmetic
CPU_FULL_SIZES = (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)
CPU_PIECEWISE_SIZES = (*range(8, 64, 8), *range(64, 257, 16))
# a GPU is bound by launches far longer: up to the largest default batch. Every size of a deep model costs a
# long capture, so there are few; from 5 rows on fewer than twice the live rows are computed
GPU_FULL_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
# mixed batches hold a chunk of a prompt and are rarely small
GPU_PIECEWISE_SIZES = (8, 16, 32, 64, 128, 256, 512, 768, 1024)


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
    piecewise_reqs: int = 0  # limit of a PIECEWISE graph; 0: none, its segments read token rows only
    query_lens: tuple[int, ...] = (1,)  # of the FULL graphs; 1 + k where k tokens are drafted
    debug: bool = False  # assert addresses, poison padding with NaN

    @property
    def captures(self) -> bool:
        return (self.decode, self.mixed) != (GraphMode.NONE, GraphMode.NONE)

    def with_drafts(self, mtp: int) -> GraphConfig:
        """FULL graphs for steps that verify `mtp` tokens per request, and for steps without any."""
        return replace(self, query_lens=(1, 1 + mtp)) if mtp else self
