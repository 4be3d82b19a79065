"""The V2 runner's input tensors: one place for life, so that a recorded graph finds them again."""

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
    """Filled on the device by the preparation ops; a step uses the first T, R and N entries."""

    def __init__(
        self, *, max_tokens: int, max_rows: int, max_blocks: int, index_topk: int, device: torch.device
    ) -> None:
        def filled(*shape: int, dtype: torch.dtype, value: int = 0) -> Tensor:
            return torch.full(shape, value, dtype=dtype, device=device)

        self._device = device
        self.input_ids = filled(max_tokens, dtype=torch.int64)
        self.positions = filled(max_tokens, dtype=torch.int64)
        self.slot_mapping = filled(max_tokens, dtype=torch.int64, value=-1)
        self.req_rows = filled(max_tokens, dtype=torch.int32)
        self.lengths = filled(max_tokens, dtype=torch.int32)
        self.topk_indices = filled(max_tokens, index_topk, dtype=torch.int32, value=-1)
        self.seq_lens = filled(max_rows, dtype=torch.int32)
        self.block_table = filled(max_rows, max_blocks, dtype=torch.int32)
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
