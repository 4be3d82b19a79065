"""Changes of device state, queued on the host as (offset, words) and sent together."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]


class StagedWrites:
    """What the op `apply_writes` takes, in the making."""

    def __init__(self) -> None:
        self.longest = 0
        self._writes: list[IntArray] = []
        self._values: list[IntArray] = []
        self._size = 0

    def __bool__(self) -> bool:
        return bool(self._writes)

    def add(self, offset: int, words: IntArray) -> None:
        """One write."""
        self.add_rows(np.asarray([offset], dtype=np.int64), words[None])

    def add_rows(self, offsets: npt.NDArray[np.int64], words: IntArray) -> None:
        """A write of words[i] `[W]` at each offsets[i] `[M]`; they do not overlap."""
        count, width = words.shape
        rows = np.empty((count, 3), dtype=np.int32)
        rows[:, 0] = offsets
        rows[:, 1] = self._size + width * np.arange(count)
        rows[:, 2] = width
        self._writes.append(rows)
        self._values.append(words.reshape(-1))
        self._size += count * width
        self.longest = max(self.longest, width)

    def parts(self) -> tuple[IntArray, IntArray]:
        """writes `[M, 3]` and values `[W]`."""
        return np.concatenate(self._writes), np.concatenate(self._values)
