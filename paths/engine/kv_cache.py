"""Ownership of the pages of the KV cache. Bookkeeping only: tensors live in `paths.kernels.layouts`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from paths.engine.batch import NULL_BLOCK, PAGE_SIZE


def pages_for(tokens: int) -> int:
    """Pages that hold `tokens` tokens."""
    return -(-tokens // PAGE_SIZE)


class BlockPool:
    """A stack of free pages. Page 0 is the null block and is never handed out."""

    def __init__(self, num_blocks: int) -> None:
        self._free = np.arange(num_blocks - 1, NULL_BLOCK, -1, dtype=np.int32)
        self._count = len(self._free)
        self.capacity = self._count

    @property
    def free(self) -> int:
        return self._count

    def take(self, count: int) -> npt.NDArray[np.int32]:
        """Remove `count` pages from the pool. The caller has checked that they are there."""
        if count > self._count:
            raise RuntimeError(f"block pool: asked for {count} pages, {self._count} are free")
        self._count -= count
        return self._free[self._count : self._count + count].copy()

    def give_back(self, blocks: npt.NDArray[np.int32]) -> None:
        end = self._count + len(blocks)
        if end > self.capacity:
            raise RuntimeError("block pool: more pages returned than were taken")
        self._free[self._count : end] = blocks
        self._count = end
