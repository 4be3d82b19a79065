"""The preparation of a V2 step, as its definition: one request, one token after the other.

S slots hold the state of requests between steps. A step has R batch rows: slots int32 `[R]`, −1 for padding,
and query_start int32 `[R + 1]`, non-decreasing: batch row r owns the tokens query_start[r] to
query_start[r + 1]. logits_start int32 `[R + 1]` does the same for the rows whose logits are wanted, the last
ones of their request. Buffers may be longer than what is live; the rest is filled with values that are safe
to use: slot −1, length 0, id 0, block 0.
"""

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
    """computed int64 `[S]`: tokens of the slot before this step. Writes, of each token, positions int64,
    req_rows int32 and lengths int32 `[T]`; of each batch row the length after the step, seq_lens int32 `[R]`.
    """
    for buffer in (positions, req_rows, lengths, seq_lens):
        buffer.zero_()
    for r, slot in enumerate(slots.tolist()):
        first, end = int(query_start[r]), int(query_start[r + 1])
        if slot < 0:
            continue
        seq_lens[r] = computed[slot] + end - first
        for t in range(first, end):
            positions[t] = computed[slot] + t - first
            req_rows[t] = r
            lengths[t] = positions[t] + 1


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
    """token_ids int32 `[S, M]` are the known tokens of a slot, total_len int64 `[S]` of them, and
    draft_tokens int64 `[S, K]` those guessed to follow. Writes input_ids int64 `[T]` and, of each of the N
    rows whose logits are wanted: its token row, its slot (int32), the position of the token that it yields,
    and the draft at that position or −1.
    """
    for buffer in (input_ids, logits_rows, logits_slots, next_positions):
        buffer.zero_()
    draft_ids.fill_(-1)
    for r, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        first, end = int(query_start[r]), int(query_start[r + 1])
        known = int(total_len[slot])
        for t in range(first, end):
            p = int(positions[t])
            input_ids[t] = token_ids[slot, p] if p < known else draft_tokens[slot, p - known]
        last = int(logits_start[r + 1])
        for n in range(int(logits_start[r]), last):
            logits_rows[n] = end - (last - n)
            logits_slots[n] = slot
            next_positions[n] = positions[logits_rows[n]] + 1
            if n < last - 1:
                draft_ids[n] = input_ids[logits_rows[n] + 1]


def gather_block_table(slots: Tensor, block_table: Tensor, *, out: Tensor) -> None:
    """Row r of out int32 `[R, B]` is the row slots[r] of block_table int32 `[S, B]`, or null blocks."""
    out.fill_(NULL_BLOCK)
    for r, slot in enumerate(slots.tolist()):
        if slot >= 0:
            out[r] = block_table[slot]


def slot_mapping(
    positions: Tensor, req_rows: Tensor, lengths: Tensor, block_table: Tensor, *, out: Tensor
) -> None:
    """out int64 `[T]`: block × page + offset of each token in the gathered block table; −1 at length 0."""
    out.fill_(-1)
    for t in range(len(out)):
        if lengths[t] > 0:
            page, offset = divmod(int(positions[t]), PAGE_SIZE)
            out[t] = int(block_table[req_rows[t], page]) * PAGE_SIZE + offset


def gather_rows(x: Tensor, rows: Tensor) -> Tensor:
    """x `[T, D]`, rows int64 `[N]` → `[N, D]`."""
    return torch.stack([x[row] for row in rows.tolist()]) if len(rows) else x[:0].clone()


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
    """Append the step's tokens: sampled int64 `[R, W]`, of which counts int32 `[R]` are valid.

    A row that wanted n logits and yields c tokens had n − c drafts rejected: their keys count as missing.
    """
    for r, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        wanted = int(logits_start[r + 1] - logits_start[r])
        count = int(counts[r]) if wanted else 0
        first = int(total_len[slot])
        computed[slot] += query_start[r + 1] - query_start[r] - (wanted - count)
        token_ids[slot, first : first + count] = sampled[r, :count].int()
        total_len[slot] += count
