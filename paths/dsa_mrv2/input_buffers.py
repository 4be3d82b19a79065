"""What a V2 step sends, and what its preparation ops write beside the model's static inputs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from paths.engine.scheduler import StepPlan


@dataclass(frozen=True, kw_only=True)
class StepRows:
    """What the host sends for a step: R batch rows in plan order, of which N yield a token."""

    slots: Tensor  # [R] int32
    query_start: Tensor  # [R + 1] int32: first token of each row, non-decreasing
    logits_start: Tensor  # [R + 1] int32: first of its logits rows
    counts: Tensor  # [R] int32: tokens that the row yields


class InputBuffers:
    """Of the rows whose logits are wanted; filled on the device, a step uses the first N entries."""

    def __init__(self, *, max_rows: int, device: torch.device) -> None:
        def filled(*shape: int, dtype: torch.dtype, value: int = 0) -> Tensor:
            return torch.full(shape, value, dtype=dtype, device=device)

        self._device = device
        self.logits_rows = filled(max_rows, dtype=torch.int64)
        self.logits_slots = filled(max_rows, dtype=torch.int32)
        self.next_positions = filled(max_rows, dtype=torch.int64)
        self.draft_ids = filled(max_rows, dtype=torch.int64, value=-1)

    def send(self, plan: StepPlan) -> StepRows:
        """One copy to the device. Its rows start at multiples of 16 bytes, which kernels are compiled for."""
        rows = len(plan.slots)
        staged = np.zeros((4, -(-(rows + 1) // 4) * 4), dtype=np.int32)
        staged[0, :rows] = plan.slots
        np.cumsum(plan.num_tokens, out=staged[1, 1 : rows + 1])
        np.cumsum(plan.samples, out=staged[2, 1 : rows + 1])
        staged[3, :rows] = plan.samples
        sent = torch.from_numpy(staged).to(self._device)
        return StepRows(
            slots=sent[0, :rows],
            query_start=sent[1, : rows + 1],
            logits_start=sent[2, : rows + 1],
            counts=sent[3, :rows],
        )
