"""The V2 runner's persistent state: stable slots on the device, changed by staged writes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from paths.dsa_mrv2.staged_writes import StagedWrites
from paths.engine.requests import RequestTable
from paths.engine.scheduler import StepPlan

_ALIGN = 4  # words: every region begins at a multiple of 16 bytes
_INT32_MAX = 2**31 - 1


class RequestStates:
    """Token history, lengths, block tables and sampling parameters by slot: regions of one int32 tensor.

    One tensor, so that one op applies all changes of a step. The last sampled token of a slot is the last of
    its history.
    """

    token_ids: Tensor  # [S, max_model_len] int32
    block_table: Tensor  # [S, max_blocks] int32
    computed: Tensor  # [S] int64
    total_len: Tensor  # [S] int64
    temperature: Tensor  # [S] float32
    top_k: Tensor  # [S] int32
    top_p: Tensor  # [S] float32
    seeds: Tensor  # [S] int64
    limits: Tensor  # [S] int64: tokens that the request may come to
    draft_tokens: Tensor  # [S, mtp] int64
    draft_probs: Tensor | None  # [S, mtp, V] float32; None: no request has drawn a draft

    def __init__(self, table: RequestTable, device: torch.device, *, mtp: int = 0) -> None:
        slots, length = table.token_ids.shape
        regions = {
            "token_ids": (torch.int32, (slots, length)),
            "block_table": (torch.int32, table.block_table.shape),
            "computed": (torch.int64, (slots,)),
            "total_len": (torch.int64, (slots,)),
            "temperature": (torch.float32, (slots,)),
            "top_k": (torch.int32, (slots,)),
            "top_p": (torch.float32, (slots,)),
            "seeds": (torch.int64, (slots,)),
            "limits": (torch.int64, (slots,)),
        }
        self._start: dict[str, int] = {}
        words = 0
        for name, (dtype, shape) in regions.items():
            self._start[name] = words
            words += -(-int(np.prod(shape)) * dtype.itemsize // 4 // _ALIGN) * _ALIGN
        if words > _INT32_MAX:
            raise ValueError(
                f"{words} words of request state exceed {_INT32_MAX}: fewer slots or a shorter context"
            )
        self.words = torch.zeros(words, dtype=torch.int32, device=device)
        for name, (dtype, shape) in regions.items():
            size = int(np.prod(shape)) * dtype.itemsize // 4
            region = self.words[self._start[name] : self._start[name] + size]
            setattr(self, name, region.view(dtype).view(shape))
        self.draft_tokens = torch.zeros(slots, mtp, dtype=torch.int64, device=device)
        self.draft_probs = None

    def stage(self, plan: StepPlan, table: RequestTable) -> StagedWrites:
        """The rows that the scheduler changed. Those of running requests are left alone."""
        writes = StagedWrites()
        length = self.token_ids.shape[1]
        for slot in plan.admitted:
            known = int(table.total_len[slot])
            writes.add(self._start["token_ids"] + slot * length, table.token_ids[slot, :known])
        if plan.admitted:
            slots = np.asarray(plan.admitted, dtype=np.int32)
            zeros = np.zeros(len(slots), dtype=np.int64)
            self._stage(writes, "computed", slots, zeros)
            self._stage(writes, "total_len", slots, table.total_len[slots].astype(np.int64))
            self._stage(writes, "temperature", slots, table.temperature[slots])
            self._stage(writes, "top_k", slots, table.top_k[slots])
            self._stage(writes, "top_p", slots, table.top_p[slots])
            self._stage(writes, "seeds", slots, table.seed[slots])
            if self.draft_tokens.shape[1]:
                self._stage(writes, "limits", slots, table.max_total[slots].astype(np.int64))
        if len(plan.grown):
            self._stage(writes, "block_table", plan.grown, table.block_table[plan.grown])
        return writes

    def _stage(
        self, writes: StagedWrites, name: str, slots: npt.NDArray[np.int32], values: np.ndarray
    ) -> None:
        """One entry of region `name` for each slot."""
        rows = np.ascontiguousarray(values).view(np.int32).reshape(len(slots), -1)
        writes.add_rows(self._start[name] + slots.astype(np.int64) * rows.shape[1], rows)
