"""The V1 runner's batch: dense rows on the CPU, condensed whenever a request leaves."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from paths.engine.batch import PAGE_SIZE
from paths.engine.requests import RequestTable

IntArray = npt.NDArray[np.int32]


class InputBatch:
    """Rows 0 … size−1 are always occupied: a hole is filled by the last row. mtp: most drafts of a row."""

    def __init__(self, table: RequestTable, *, mtp: int = 0) -> None:
        rows, length = table.token_ids.shape
        self.size = 0
        self.version = 0  # changes whenever a row's request does
        self.token_ids = np.zeros((rows, length), dtype=np.int32)
        self.draft_ids = np.full((rows, mtp + 1), -1, dtype=np.int32)  # and one that is none
        self.block_table = np.zeros_like(table.block_table)
        self.temperature = np.zeros(rows, dtype=np.float32)
        self.top_k = np.zeros(rows, dtype=np.int32)
        self.top_p = np.ones(rows, dtype=np.float32)
        self.seeds = np.zeros(rows, dtype=np.int64)
        self.numbers = np.arange(length + PAGE_SIZE)  # positions, to be sliced
        self.row_of_slot = np.full(rows, -1, dtype=np.int32)
        self._slot_of_row = np.full(rows, -1, dtype=np.int32)
        self._columns = (
            self.token_ids,
            self.draft_ids,
            self.block_table,
            self.temperature,
            self.top_k,
            self.top_p,
            self.seeds,
        )

    def remove(self, slots: Iterable[int]) -> None:
        """Drop requests and condense: each hole takes the row that is last at that moment."""
        for slot in slots:
            row = int(self.row_of_slot[slot])
            if row < 0:
                continue  # left before it ever ran
            last = self.size - 1
            if row != last:
                for column in self._columns:
                    column[row] = column[last]
                moved = int(self._slot_of_row[last])
                self._slot_of_row[row] = moved
                self.row_of_slot[moved] = row
            self.version += 1
            self._slot_of_row[last] = -1
            self.row_of_slot[slot] = -1
            self.size = last

    def add(self, slot: int, table: RequestTable) -> None:
        row = self.size
        self.size += 1
        self.version += 1
        known = int(table.total_len[slot])
        self.token_ids[row, :known] = table.token_ids[slot, :known]
        self.temperature[row] = table.temperature[slot]
        self.top_k[row] = table.top_k[slot]
        self.top_p[row] = table.top_p[slot]
        self.seeds[row] = table.seed[slot]
        self.row_of_slot[slot] = row
        self._slot_of_row[row] = slot

    def update_blocks(self, slots: IntArray, table: RequestTable) -> None:
        if len(slots):
            self.block_table[self.row_of_slot[slots]] = table.block_table[slots]

    def append_tokens(self, slots: IntArray, *, positions: IntArray, tokens: IntArray) -> None:
        self.token_ids[self.row_of_slot[slots], positions] = tokens

    def append_runs(
        self, slots: IntArray, *, positions: IntArray, counts: IntArray, tokens: IntArray
    ) -> None:
        """The first counts `[N]` of tokens `[N, K]`, from positions `[N]` on."""
        for row, at, count, run in zip(
            self.row_of_slot[slots].tolist(), positions.tolist(), counts.tolist(), tokens, strict=True
        ):
            self.token_ids[row, at : at + count] = run[:count]

    def slots(self, row: int, start: int, end: int) -> npt.NDArray[np.int64]:
        """Cache slots of a row's positions start ≤ p < end."""
        positions, page = self.numbers[start:end], start // PAGE_SIZE
        if start < end <= (page + 1) * PAGE_SIZE:
            return positions + (int(self.block_table[row, page]) - page) * PAGE_SIZE
        blocks = self.block_table[row, positions // PAGE_SIZE].astype(np.int64)
        return blocks * PAGE_SIZE + positions % PAGE_SIZE
