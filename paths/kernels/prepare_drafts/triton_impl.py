"""The preparation of drafts in Triton.

Bytes: shift_tokens reads 16 and writes 20 a token and 24 a request; advance_drafts reads 36 and writes 44 a
request.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paths.engine.batch import PAGE_SIZE
from paths.kernels.launching import TileConfig, launch
from paths.kernels.prepare_inputs.triton_impl import owner
from paths.kernels.tensors import check_tensor

PAGE = tl.constexpr(PAGE_SIZE)
TILES = TileConfig(num_warps=4, num_stages=1, tiles={"BLOCK": 256})
# counts that change with every step: a kernel compiled anew for 1 or for multiples of 16 would stall it
PER_STEP = ("tokens", "rows", "steps", "entries")


@triton.jit
def live_end(query_start, logits_start, counts, row, mask):
    """First row of a request that is none of its tokens any more, and how many logits it wanted."""
    end = tl.load(query_start + row + 1, mask=mask, other=0)
    wanted = tl.load(logits_start + row + 1, mask=mask, other=0) - tl.load(
        logits_start + row, mask=mask, other=0
    )
    got = tl.load(counts + row, mask=mask & (wanted > 0), other=0)
    return end - tl.where(wanted > 0, wanted - got, 0), wanted


@triton.jit(do_not_specialize=PER_STEP)
def shift_tokens_kernel(
    slots,
    query_start,
    logits_start,
    counts,
    positions,
    token_ids,
    input_ids,
    lengths,
    slot_mapping,
    draft_slots,
    last_rows,
    last_positions,
    last_lengths,
    token_stride,
    tokens,
    rows,
    entries,
    steps,
    BLOCK: tl.constexpr,
):
    """Grid over blocks of the longer of tokens and request entries."""
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_token = entry < tokens
    row = owner(query_start, entry, rows, steps)
    inside = row < rows
    slot = tl.load(slots + row, mask=inside, other=-1).to(tl.int64)
    owned = is_token & inside & (slot >= 0)
    behind, wanted = live_end(query_start, logits_start, counts, row, owned)
    live = owned & (entry < behind)
    following = tl.load(positions + entry, mask=live, other=-1) + 1
    token = tl.load(token_ids + slot * token_stride + following, mask=owned, other=0)
    tl.store(input_ids + entry, token.to(tl.int64), mask=is_token)
    tl.store(lengths + entry, tl.zeros_like(entry), mask=is_token & (live == 0))
    tl.store(slot_mapping + entry, tl.full([BLOCK], -1, tl.int64), mask=is_token & (live == 0))
    is_row = entry < rows
    slot = tl.load(slots + entry, mask=is_row, other=-1)
    behind, wanted = live_end(query_start, logits_start, counts, entry, is_row & (slot >= 0))
    drafts = is_row & (slot >= 0) & (wanted > 0)
    last = tl.where(drafts, behind - 1, 0)
    position = tl.load(positions + last, mask=drafts, other=0)
    is_entry = entry < entries
    tl.store(draft_slots + entry, tl.where(drafts, slot, -1), mask=is_entry)
    tl.store(last_rows + entry, last.to(tl.int64), mask=is_entry)
    tl.store(last_positions + entry, position, mask=is_entry)
    tl.store(last_lengths + entry, tl.where(drafts, position + 1, 0).to(tl.int32), mask=is_entry)


@triton.jit(do_not_specialize=("step", "entries"))
def advance_drafts_kernel(
    tokens,
    draft_slots,
    last_positions,
    limits,
    block_table,
    draft_tokens,
    input_ids,
    positions,
    lengths,
    slot_mapping,
    req_rows,
    table_stride,
    draft_stride,
    step,
    entries,
    BLOCK: tl.constexpr,
):
    """Grid over blocks of requests; slots are distinct, so nobody else writes this one's draft."""
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = b < entries
    slot = tl.load(draft_slots + b, mask=inside, other=-1).to(tl.int64)
    drafts = inside & (slot >= 0)
    token = tl.load(tokens + b, mask=drafts, other=0)
    tl.store(draft_tokens + slot * draft_stride + step, token, mask=drafts)
    position = tl.load(last_positions + b, mask=drafts, other=0) + step + 1
    live = drafts & (position < tl.load(limits + slot, mask=drafts, other=0))
    position = tl.where(live, position, 0)
    page = block_table + b.to(tl.int64) * table_stride + position // PAGE
    block = tl.load(page, mask=live, other=0).to(tl.int64)
    tl.store(input_ids + b, token, mask=inside)
    tl.store(positions + b, position, mask=inside)
    tl.store(lengths + b, tl.where(live, position + 1, 0).to(tl.int32), mask=inside)
    tl.store(slot_mapping + b, tl.where(live, block * PAGE + position % PAGE, -1), mask=inside)
    tl.store(req_rows + b, tl.where(drafts, b, 0), mask=inside)


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
    """See the reference. Raises ValueError for a wrong shape, dtype or stride."""
    op = "shift_tokens"
    check_tensor(op, "slots", slots, dtype=torch.int32, shape=(None,))
    rows = len(slots)
    check_tensor(op, "query_start", query_start, dtype=torch.int32, shape=(rows + 1,))
    check_tensor(op, "logits_start", logits_start, dtype=torch.int32, shape=(rows + 1,))
    check_tensor(op, "counts", counts, dtype=torch.int32, shape=(rows,))
    check_tensor(op, "positions", positions, dtype=torch.int64, shape=(None,))
    check_tensor(op, "token_ids", token_ids, dtype=torch.int32, shape=(None, None))
    tokens = len(positions)
    check_tensor(op, "input_ids", input_ids, dtype=torch.int64, shape=(tokens,))
    check_tensor(op, "lengths", lengths, dtype=torch.int32, shape=(tokens,))
    check_tensor(op, "slot_mapping", slot_mapping, dtype=torch.int64, shape=(tokens,))
    check_tensor(op, "draft_slots", draft_slots, dtype=torch.int32, shape=(None,))
    entries = len(draft_slots)
    check_tensor(op, "last_rows", last_rows, dtype=torch.int64, shape=(entries,))
    check_tensor(op, "last_positions", last_positions, dtype=torch.int64, shape=(entries,))
    check_tensor(op, "last_lengths", last_lengths, dtype=torch.int32, shape=(entries,))
    launch(
        shift_tokens_kernel,
        lambda tiles: (triton.cdiv(max(tokens, entries), tiles["BLOCK"]),),
        slots,
        query_start,
        logits_start,
        counts,
        positions,
        token_ids,
        input_ids,
        lengths,
        slot_mapping,
        draft_slots,
        last_rows,
        last_positions,
        last_lengths,
        token_ids.stride(0),
        tokens,
        rows,
        entries,
        rows.bit_length(),
        config=TILES,
    )


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
    """See the reference. Raises ValueError for a wrong shape, dtype or stride."""
    op = "advance_drafts"
    check_tensor(op, "tokens", tokens, dtype=torch.int64, shape=(None,))
    entries = len(tokens)
    check_tensor(op, "draft_slots", draft_slots, dtype=torch.int32, shape=(entries,))
    check_tensor(op, "last_positions", last_positions, dtype=torch.int64, shape=(entries,))
    check_tensor(op, "draft_tokens", draft_tokens, dtype=torch.int64, shape=(None, None))
    check_tensor(op, "limits", limits, dtype=torch.int64, shape=(len(draft_tokens),))
    check_tensor(op, "block_table", block_table, dtype=torch.int32, shape=(entries, None))
    check_tensor(op, "input_ids", input_ids, dtype=torch.int64, shape=(entries,))
    check_tensor(op, "positions", positions, dtype=torch.int64, shape=(entries,))
    check_tensor(op, "lengths", lengths, dtype=torch.int32, shape=(entries,))
    check_tensor(op, "slot_mapping", slot_mapping, dtype=torch.int64, shape=(entries,))
    check_tensor(op, "req_rows", req_rows, dtype=torch.int32, shape=(entries,))
    launch(
        advance_drafts_kernel,
        lambda tiles: (triton.cdiv(entries, tiles["BLOCK"]),),
        tokens,
        draft_slots,
        last_positions,
        limits,
        block_table,
        draft_tokens,
        input_ids,
        positions,
        lengths,
        slot_mapping,
        req_rows,
        block_table.stride(0),
        draft_tokens.stride(0),
        step,
        entries,
        config=TILES,
    )
