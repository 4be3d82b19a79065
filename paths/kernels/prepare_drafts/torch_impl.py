"""The preparation of drafts in vectorised torch."""

from __future__ import annotations

import torch
from torch import Tensor

from paths.engine.batch import PAGE_SIZE
from paths.kernels.prepare_inputs.torch_impl import owners


def shift_tokens(
    slots: Tensor,
    query_start: Tensor,
    logits_start: Tensor,
    counts: Tensor,
    positions: Tensor,
    token_ids: Tensor,
    *,
    input_ids: Tensor,
    lengths: Tensor,
    slot_mapping: Tensor,
    draft_slots: Tensor,
    last_rows: Tensor,
    last_positions: Tensor,
    last_lengths: Tensor,
) -> None:
    """See the reference."""
    draft_slots.fill_(-1)
    last_rows.zero_()
    last_positions.zero_()
    last_lengths.zero_()
    wanted = logits_start.diff()
    behind = query_start[1:] - torch.where(wanted > 0, wanted - counts, 0)
    token, row, owned = owners(len(input_ids), slots, query_start)
    if len(slots) == 0:
        input_ids.zero_()
        lengths.zero_()
        slot_mapping.fill_(-1)
        return
    live = owned & (token < behind[row])
    following = torch.where(live, positions + 1, 0)
    ids = token_ids[slots[row].clamp(min=0).long(), following].long()
    input_ids.copy_(torch.where(owned, ids, 0))
    lengths.copy_(torch.where(live, lengths, 0))
    slot_mapping.copy_(torch.where(live, slot_mapping, -1))
    drafts = (slots >= 0) & (wanted > 0)
    last = torch.where(drafts, behind - 1, 0).long()
    draft_slots[: len(slots)] = torch.where(drafts, slots, -1)
    last_rows[: len(slots)] = last
    if len(positions):
        last_positions[: len(slots)] = torch.where(drafts, positions[last], 0)
        last_lengths[: len(slots)] = torch.where(drafts, positions[last] + 1, 0)


def advance_drafts(
    tokens: Tensor,
    draft_slots: Tensor,
    last_positions: Tensor,
    limits: Tensor,
    block_table: Tensor,
    *,
    step: int,
    draft_tokens: Tensor,
    input_ids: Tensor,
    positions: Tensor,
    lengths: Tensor,
    slot_mapping: Tensor,
    req_rows: Tensor,
) -> None:
    """See the reference."""
    drafts = draft_slots >= 0
    slot = draft_slots.clamp(min=0).long()
    # who drafts nothing adds 0 to the first slot
    old = draft_tokens[slot, step]
    draft_tokens[:, step].index_add_(0, slot, torch.where(drafts, tokens - old, 0))
    position = last_positions + (step + 1)
    live = drafts & (position < limits[slot])
    position = torch.where(live, position, 0)
    row = torch.arange(len(tokens), device=tokens.device)
    block = block_table[row, position // PAGE_SIZE].long()
    input_ids.copy_(torch.where(drafts, tokens, 0))
    positions.copy_(position)
    lengths.copy_(torch.where(live, position + 1, 0))
    slot_mapping.copy_(torch.where(live, block * PAGE_SIZE + position % PAGE_SIZE, -1))
    req_rows.copy_(torch.where(drafts, row, 0))
