"""The preparation of a V2 step in vectorised torch."""

from __future__ import annotations

import torch
from torch import Tensor

from paths.engine.batch import NULL_BLOCK, PAGE_SIZE


def prepare_positions(
    slots: Tensor,
    query_start: Tensor,
    computed: Tensor,
    *,
    positions: Tensor,
    req_rows: Tensor,
    lengths: Tensor,
    seq_lens: Tensor,
) -> None:
    """See the reference."""
    live_row = slots >= 0
    before = torch.where(live_row, computed[slots.clamp(min=0).long()], 0)
    seq_lens.copy_(torch.where(live_row, before + query_start.diff(), 0))
    token, row, live = owners(len(positions), slots, query_start)
    position = torch.where(live, before[row] + token - query_start[row], 0)
    positions.copy_(position)
    req_rows.copy_(torch.where(live, row, 0))
    lengths.copy_(torch.where(live, position + 1, 0))


def combine_tokens(
    slots: Tensor,
    query_start: Tensor,
    logits_start: Tensor,
    positions: Tensor,
    token_ids: Tensor,
    total_len: Tensor,
    draft_tokens: Tensor,
    *,
    input_ids: Tensor,
    logits_rows: Tensor,
    logits_slots: Tensor,
    next_positions: Tensor,
    draft_ids: Tensor,
) -> None:
    """See the reference."""
    _, row, live = owners(len(input_ids), slots, query_start)
    slot = slots[row].clamp(min=0).long()
    input_ids.copy_(torch.where(live, _token_at(slot, positions, token_ids, total_len, draft_tokens), 0))
    n, row, live = owners(len(logits_rows), slots, logits_start)
    last = logits_start[row + 1]
    at = torch.where(live, query_start[row + 1] - (last - n), 0)
    slot = slots[row].clamp(min=0).long()
    following = torch.where(live, positions[at] + 1, 0)
    draft = _token_at(slot, following, token_ids, total_len, draft_tokens)
    logits_rows.copy_(at)
    logits_slots.copy_(torch.where(live, slot, 0))
    next_positions.copy_(following)
    draft_ids.copy_(torch.where(live & (n < last - 1), draft, -1))


def gather_block_table(slots: Tensor, block_table: Tensor, *, out: Tensor) -> None:
    """See the reference."""
    rows = block_table[slots.clamp(min=0).long()]
    out.copy_(rows.masked_fill(slots[:, None] < 0, NULL_BLOCK))


def slot_mapping(
    positions: Tensor, req_rows: Tensor, lengths: Tensor, block_table: Tensor, *, out: Tensor
) -> None:
    """See the reference."""
    live = lengths > 0
    position = torch.where(live, positions, 0)
    block = block_table[torch.where(live, req_rows, 0).long(), position // PAGE_SIZE].long()
    out.copy_(torch.where(live, block * PAGE_SIZE + position % PAGE_SIZE, -1))


def gather_rows(x: Tensor, rows: Tensor) -> Tensor:
    """See the reference."""
    return x[rows]


def post_update(
    slots: Tensor,
    query_start: Tensor,
    logits_start: Tensor,
    sampled: Tensor,
    counts: Tensor,
    *,
    computed: Tensor,
    total_len: Tensor,
    token_ids: Tensor,
) -> None:
    """See the reference."""
    wanted = logits_start.diff()
    live = slots >= 0
    count = torch.where(live & (wanted > 0), counts, 0)
    steps = torch.where(live, query_start.diff() - (wanted - count), 0)
    slot = slots.clamp(min=0).long()
    column = torch.arange(sampled.shape[1], device=slots.device)
    # padding rows and rejected tokens add 0 to what stands at their slot's first place
    valid = column < count[:, None]
    at = torch.where(valid, total_len[slot][:, None] + column, 0)
    old = token_ids[slot[:, None], at]
    change = torch.where(valid, sampled.int() - old, 0)
    token_ids.index_put_((slot[:, None].expand_as(at), at), change, accumulate=True)
    computed.index_add_(0, slot, steps.long())
    total_len.index_add_(0, slot, count.long())


def owners(size: int, slots: Tensor, starts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """0 … size − 1, the batch row that owns each, and whether there is one with a slot."""
    entry = torch.arange(size, device=slots.device)
    if len(slots) == 0:
        return entry, torch.zeros_like(entry), torch.zeros_like(entry, dtype=torch.bool)
    row = torch.searchsorted(starts[1:].long().contiguous(), entry, right=True)
    owned = row < len(slots)
    row = row.clamp(max=len(slots) - 1)
    return entry, row, owned & (slots[row] >= 0) & (entry >= starts[0])


def _token_at(
    slot: Tensor, position: Tensor, token_ids: Tensor, total_len: Tensor, draft_tokens: Tensor
) -> Tensor:
    """The known token there, else the draft; positions beyond both give 0 and are not live."""
    known = token_ids[slot, position.clamp(max=token_ids.shape[1] - 1)].long()
    if draft_tokens.shape[1] == 0:
        return known
    number = position - total_len[slot]
    draft = draft_tokens[slot, number.clamp(min=0, max=draft_tokens.shape[1] - 1)]
    return torch.where(number < 0, known, draft)
