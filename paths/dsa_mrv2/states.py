"""The V2 runner's persistent state: one row per slot on the device, written when something changes."""

from __future__ import annotations

import torch
from torch import Tensor

from paths.engine.requests import RequestTable
from paths.engine.scheduler import StepPlan


class RequestStates:
    """Token history, lengths, block tables and sampling parameters by stable slot."""

    def __init__(self, table: RequestTable, device: torch.device) -> None:
        rows, length = table.token_ids.shape
        self._device = device
        self.token_ids = torch.zeros(rows, length, dtype=torch.int32, device=device)
        self.block_table = torch.zeros(rows, table.block_table.shape[1], dtype=torch.int32, device=device)
        self.computed = torch.zeros(rows, dtype=torch.int64, device=device)
        self.total_len = torch.zeros(rows, dtype=torch.int64, device=device)
        self.draft_tokens = torch.zeros(rows, 0, dtype=torch.int64, device=device)
        self.temperature = torch.zeros(rows, dtype=torch.float32, device=device)
        self.top_k = torch.zeros(rows, dtype=torch.int32, device=device)
        self.top_p = torch.ones(rows, dtype=torch.float32, device=device)
        self.seeds = torch.zeros(rows, dtype=torch.int64, device=device)

    def apply(self, plan: StepPlan, table: RequestTable) -> None:
        """Stage the rows that the scheduler changed. Rows of running requests are left alone."""
        if plan.admitted:
            slots = list(plan.admitted)
            rows = torch.tensor(slots, device=self._device)
            width = int(table.total_len[slots].max())
            self.token_ids[rows, :width] = self._staged(table.token_ids[slots, :width])
            self.computed[rows] = 0
            self.total_len[rows] = self._staged(table.total_len[slots]).long()
            self.temperature[rows] = self._staged(table.temperature[slots])
            self.top_k[rows] = self._staged(table.top_k[slots])
            self.top_p[rows] = self._staged(table.top_p[slots])
            self.seeds[rows] = self._staged(table.seed[slots])
        if len(plan.grown):
            self.block_table[self._staged(plan.grown).long()] = self._staged(table.block_table[plan.grown])

    def _staged(self, array: object) -> Tensor:
        return torch.as_tensor(array, device=self._device)
