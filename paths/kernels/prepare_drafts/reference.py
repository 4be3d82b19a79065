"""The preparation of drafts, as its definition: one request, one token after the other.

Slots, query_start and logits_start are those of a step (see `prepare_inputs`), B ≥ R entries describe its
requests. Draft 0 runs on the rows of the step, each with the token behind its own; later drafts run on one
row per request.
"""

from __future__ import annotations

from torch import Tensor

from paths.engine.batch import PAGE_SIZE


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
    """The step's buffers become those of draft 0. counts int32 `[R]`: tokens that each row has got.

    positions int64 `[T]` are those of the step, token_ids int32 `[S, M]` the known tokens with its results.
    Of each token row: input_ids int64 is the token behind it, lengths int32 and slot_mapping int64 `[T]`
    stay. Rows of rejected drafts and those of nobody become padding: length 0, slot −1, and the first token
    of the request or 0.

    Of each request that wanted logits its slot int32, its last live row int64, the position of that, int64,
    and the keys it sees, int32, `[B]`; of all others −1, 0, 0 and 0.
    """
    draft_slots.fill_(-1)
    last_rows.zero_()
    last_positions.zero_()
    last_lengths.zero_()
    owned = set()
    for r, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        first, end = int(query_start[r]), int(query_start[r + 1])
        wanted = int(logits_start[r + 1] - logits_start[r])
        live = end - (wanted - int(counts[r]) if wanted else 0)
        for t in range(first, end):
            owned.add(t)
            input_ids[t] = token_ids[slot, positions[t] + 1 if t < live else 0]
            if t >= live:
                lengths[t], slot_mapping[t] = 0, -1
        if wanted:
            draft_slots[r], last_rows[r], last_positions[r] = slot, live - 1, positions[live - 1]
            last_lengths[r] = positions[live - 1] + 1
    for t in set(range(len(input_ids))) - owned:
        input_ids[t], lengths[t], slot_mapping[t] = 0, 0, -1


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
    """Keeps draft `step` of each request, tokens int64 `[B]`, and makes the inputs of the draft behind it.

    draft_slots and last_positions are those of `shift_tokens`; limits int64 `[S]`: tokens that a slot may
    come to; block_table int32 `[B, P]`: pages of each request. Writes column `step` of draft_tokens int64
    `[S, K]`, and one row per request: input_ids, positions, slot_mapping int64, lengths and req_rows int32
    `[B]`. A row at or past the limit has length 0, position 0 and slot −1; one of nobody id 0 and row 0, too.
    """
    for buffer in (input_ids, positions, lengths, req_rows):
        buffer.zero_()
    slot_mapping.fill_(-1)
    for b, slot in enumerate(draft_slots.tolist()):
        if slot < 0:
            continue
        draft_tokens[slot, step] = input_ids[b] = tokens[b]
        req_rows[b] = b
        position = int(last_positions[b]) + step + 1
        if position < limits[slot]:
            page, offset = divmod(position, PAGE_SIZE)
            positions[b], lengths[b] = position, position + 1
            slot_mapping[b] = int(block_table[b, page]) * PAGE_SIZE + offset
