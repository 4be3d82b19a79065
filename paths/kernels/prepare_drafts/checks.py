"""Index checks of the preparation of drafts for `debug.checks=true`, one function per op."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from paths.engine.batch import PAGE_SIZE
from paths.kernels.guards import refuse_outside


def check_shift_tokens(
    slots: Tensor,
    query_start: Tensor,
    logits_start: Tensor,
    counts: Tensor,
    positions: Tensor,
    token_ids: Tensor,
    *,
    draft_slots: Tensor,
    **_: Any,
) -> None:
    """Raises ValueError for rows without state or room, and for tokens that are not known."""
    op = "shift_tokens"
    refuse_outside(op, "slots", slots, low=-1, high=len(token_ids))
    refuse_outside(op, "query_start", query_start, low=0, high=len(positions) + 1)
    refuse_outside(op, "tokens per row", query_start.diff(), low=0, high=len(positions) + 1)
    refuse_outside(op, "batch rows", slots.new_tensor([len(slots)]), low=0, high=len(draft_slots) + 1)
    wanted = logits_start.diff()
    rejected = (wanted - counts)[(wanted > 0) & (slots >= 0)]
    refuse_outside(op, "rejected drafts", rejected, low=0, high=len(positions) + 1)
    refuse_outside(op, "positions", positions, low=0, high=token_ids.shape[1])


def check_advance_drafts(
    tokens: Tensor,
    draft_slots: Tensor,
    last_positions: Tensor,
    limits: Tensor,
    block_table: Tensor,
    *,
    step: int,
    draft_tokens: Tensor,
    **_: Any,
) -> None:
    """Raises ValueError for slots and drafts that do not exist, and for positions without a page."""
    op = "advance_drafts"
    refuse_outside(op, "draft_slots", draft_slots, low=-1, high=len(draft_tokens))
    refuse_outside(op, "step", draft_slots.new_tensor([step]), low=0, high=draft_tokens.shape[1])
    drafts = draft_slots >= 0
    position = last_positions[drafts] + step + 1
    live = position < limits[draft_slots[drafts].long()]
    refuse_outside(op, "positions", position[live], low=0, high=block_table.shape[1] * PAGE_SIZE)
