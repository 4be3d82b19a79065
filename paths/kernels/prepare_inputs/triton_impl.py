"""The preparation of a V2 step in Triton: every kernel writes the live part of its buffers and the rest.

Bytes: prepare_positions writes 16 a token and reads the row starts from L1; combine_tokens reads 20 and
writes 8 a token, and 28 a logits row; slot_mapping reads 20 and writes 8 a token; gather_block_table moves
the table's rows once, gather_rows its own; post_update touches two words a request and the new tokens.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paths.engine.batch import NULL_BLOCK, PAGE_SIZE
from paths.kernels.launching import TileConfig, launch
from paths.kernels.tensors import check_tensor

PAGE = tl.constexpr(PAGE_SIZE)
NULL = tl.constexpr(NULL_BLOCK)
# counts that change with every step: a kernel compiled anew for 1 or for multiples of 16 would stall it
PER_STEP = ("tokens", "wanted", "rows", "steps")


@triton.jit
def owner(starts, entries, rows, steps):
    """Batch row that owns each entry, by bisection: the number of rows that end at or before it."""
    low = tl.zeros_like(entries)
    high = low + rows
    for _ in range(steps):
        middle = (low + high) // 2
        searching = low < high
        end = tl.load(starts + middle + 1, mask=searching, other=0)
        right = searching & (end <= entries)
        low = tl.where(right, middle + 1, low)
        high = tl.where(searching & (end > entries), middle, high)
    return low


@triton.jit(do_not_specialize=PER_STEP)
def prepare_positions_kernel(
    slots,
    query_start,
    computed,
    positions,
    req_rows,
    lengths,
    seq_lens,
    tokens,
    rows,
    steps,
    BLOCK: tl.constexpr,
):
    """Grid over blocks of the longer of tokens and batch rows."""
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = owner(query_start, entry, rows, steps)
    inside = row < rows
    slot = tl.load(slots + row, mask=inside, other=-1)
    live = inside & (slot >= 0)
    before = tl.load(computed + slot.to(tl.int64), mask=live, other=0)
    first = tl.load(query_start + row, mask=live, other=0)
    position = tl.where(live, before + (entry - first), 0)
    is_token = entry < tokens
    tl.store(positions + entry, position, mask=is_token)
    tl.store(req_rows + entry, tl.where(live, row, 0), mask=is_token)
    tl.store(lengths + entry, tl.where(live, position + 1, 0).to(tl.int32), mask=is_token)
    is_row = entry < rows
    slot = tl.load(slots + entry, mask=is_row, other=-1)
    live = is_row & (slot >= 0)
    before = tl.load(computed + slot.to(tl.int64), mask=live, other=0)
    first = tl.load(query_start + entry, mask=live, other=0)
    end = tl.load(query_start + entry + 1, mask=live, other=0)
    tl.store(seq_lens + entry, tl.where(live, before + (end - first), 0).to(tl.int32), mask=is_row)


@triton.jit
def token_at(
    slot, position, live, token_ids, total_len, draft_tokens, token_stride, draft_stride, DRAFTS: tl.constexpr
):
    """The known token of a slot at a position, else the draft."""
    known = tl.load(total_len + slot, mask=live, other=0)
    is_known = live & (position < known)
    token = tl.load(token_ids + slot * token_stride + position, mask=is_known, other=0).to(tl.int64)
    if DRAFTS > 0:
        number = position - known
        is_draft = live & (number >= 0) & (number < DRAFTS)
        draft = tl.load(draft_tokens + slot * draft_stride + number, mask=is_draft, other=0)
        token = tl.where(is_draft, draft, token)
    return token


@triton.jit(do_not_specialize=PER_STEP)
def combine_tokens_kernel(
    slots,
    query_start,
    logits_start,
    positions,
    token_ids,
    total_len,
    draft_tokens,
    input_ids,
    logits_rows,
    logits_slots,
    next_positions,
    draft_ids,
    token_stride,
    draft_stride,
    tokens,
    wanted,
    rows,
    steps,
    DRAFTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid over blocks of the longer of tokens and logits rows."""
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = owner(query_start, entry, rows, steps)
    slot = tl.load(slots + row, mask=row < rows, other=-1).to(tl.int64)
    live = (row < rows) & (slot >= 0) & (entry < tokens)
    position = tl.load(positions + entry, mask=live, other=0)
    token = token_at(
        slot, position, live, token_ids, total_len, draft_tokens, token_stride, draft_stride, DRAFTS
    )
    tl.store(input_ids + entry, tl.where(live, token, 0), mask=entry < tokens)
    row = owner(logits_start, entry, rows, steps)
    slot = tl.load(slots + row, mask=row < rows, other=-1).to(tl.int64)
    live = (row < rows) & (slot >= 0) & (entry < wanted)
    last = tl.load(logits_start + row + 1, mask=live, other=0)
    at = tl.load(query_start + row + 1, mask=live, other=0) - (last - entry)
    at = tl.where(live, at, 0)
    following = tl.load(positions + at, mask=live, other=-1) + 1
    draft = token_at(
        slot, following, live, token_ids, total_len, draft_tokens, token_stride, draft_stride, DRAFTS
    )
    is_wanted = entry < wanted
    tl.store(logits_rows + entry, at.to(tl.int64), mask=is_wanted)
    tl.store(logits_slots + entry, tl.where(live, slot, 0).to(tl.int32), mask=is_wanted)
    tl.store(next_positions + entry, following, mask=is_wanted)
    tl.store(draft_ids + entry, tl.where(live & (entry < last - 1), draft, -1), mask=is_wanted)


@triton.jit
def gather_block_table_kernel(slots, block_table, out, stride, out_stride, width, BLOCK: tl.constexpr):
    """Grid (batch rows, blocks of columns)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slots + row).to(tl.int64)
    readable = tl.where(slot >= 0, width, 0)
    block = tl.load(block_table + slot * stride + column, mask=column < readable, other=NULL)
    tl.store(out + row * out_stride + column, block, mask=column < width)


@triton.jit(do_not_specialize=PER_STEP)
def slot_mapping_kernel(positions, req_rows, lengths, block_table, out, stride, tokens, BLOCK: tl.constexpr):
    """Grid over blocks of tokens."""
    entry = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = entry < tokens
    live = tl.load(lengths + entry, mask=inside, other=0) > 0
    position = tl.load(positions + entry, mask=live, other=0)
    row = tl.load(req_rows + entry, mask=live, other=0).to(tl.int64)
    block = tl.load(block_table + row * stride + position // PAGE, mask=live, other=0).to(tl.int64)
    tl.store(out + entry, tl.where(live, block * PAGE + position % PAGE, -1), mask=inside)


@triton.jit
def gather_rows_kernel(x, rows, out, stride, width, BLOCK: tl.constexpr):
    """Grid (rows, blocks of columns)."""
    n = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(rows + n)
    value = tl.load(x + row * stride + column, mask=column < width)
    tl.store(out + n * width + column, value, mask=column < width)


@triton.jit
def post_update_kernel(
    slots,
    query_start,
    logits_start,
    sampled,
    counts,
    computed,
    total_len,
    token_ids,
    sampled_stride,
    token_stride,
    width,
    WIDTH: tl.constexpr,
):
    """One program per batch row; slots are distinct, so nobody else writes this one's state."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    if slot >= 0:
        wanted = tl.load(logits_start + row + 1) - tl.load(logits_start + row)
        count = tl.where(wanted > 0, tl.load(counts + row), 0)
        done = tl.load(query_start + row + 1) - tl.load(query_start + row) - (wanted - count)
        first = tl.load(total_len + slot)
        before = tl.load(computed + slot)
        column = tl.arange(0, WIDTH)
        valid = (column < count) & (column < width)
        token = tl.load(sampled + row * sampled_stride + column, mask=valid, other=0)
        tl.store(token_ids + slot * token_stride + first + column, token.to(tl.int32), mask=valid)
        tl.store(computed + slot, before + done)
        tl.store(total_len + slot, first + count)


TOKEN_TILES = TileConfig(num_warps=4, num_stages=1, tiles={"BLOCK": 256})
COLUMN_TILES = TileConfig(num_warps=4, num_stages=1, tiles={"BLOCK": 1024})


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
    """See the reference. Raises ValueError for a wrong shape, dtype or stride."""
    op, tokens = "prepare_positions", len(positions)
    _check_rows(op, slots, query_start=query_start)
    check_tensor(op, "computed", computed, dtype=torch.int64, shape=(None,))
    check_tensor(op, "positions", positions, dtype=torch.int64, shape=(None,))
    check_tensor(op, "req_rows", req_rows, dtype=torch.int32, shape=(tokens,))
    check_tensor(op, "lengths", lengths, dtype=torch.int32, shape=(tokens,))
    check_tensor(op, "seq_lens", seq_lens, dtype=torch.int32, shape=(len(slots),))
    launch(
        prepare_positions_kernel,
        lambda tiles: (triton.cdiv(max(tokens, len(slots)), tiles["BLOCK"]),),
        slots,
        query_start,
        computed,
        positions,
        req_rows,
        lengths,
        seq_lens,
        tokens,
        len(slots),
        len(slots).bit_length(),
        config=TOKEN_TILES,
    )


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
    """See the reference. Raises ValueError for a wrong shape, dtype or stride."""
    op, tokens, wanted = "combine_tokens", len(positions), len(logits_rows)
    _check_rows(op, slots, query_start=query_start, logits_start=logits_start)
    check_tensor(op, "positions", positions, dtype=torch.int64, shape=(None,))
    _check_state(op, token_ids, total_len=total_len)
    check_tensor(op, "draft_tokens", draft_tokens, dtype=torch.int64, shape=(len(total_len), None))
    check_tensor(op, "input_ids", input_ids, dtype=torch.int64, shape=(tokens,))
    check_tensor(op, "logits_rows", logits_rows, dtype=torch.int64, shape=(None,))
    check_tensor(op, "logits_slots", logits_slots, dtype=torch.int32, shape=(wanted,))
    check_tensor(op, "next_positions", next_positions, dtype=torch.int64, shape=(wanted,))
    check_tensor(op, "draft_ids", draft_ids, dtype=torch.int64, shape=(wanted,))
    launch(
        combine_tokens_kernel,
        lambda tiles: (triton.cdiv(max(tokens, wanted), tiles["BLOCK"]),),
        slots,
        query_start,
        logits_start,
        positions,
        token_ids,
        total_len,
        draft_tokens,
        input_ids,
        logits_rows,
        logits_slots,
        next_positions,
        draft_ids,
        token_ids.stride(0),
        draft_tokens.stride(0),
        tokens,
        wanted,
        len(slots),
        len(slots).bit_length(),
        config=TOKEN_TILES,
        DRAFTS=draft_tokens.shape[1],
    )


def gather_block_table(slots: Tensor, block_table: Tensor, *, out: Tensor) -> None:
    """See the reference. Raises ValueError for a wrong shape, dtype or stride."""
    op, width = "gather_block_table", block_table.shape[-1]
    check_tensor(op, "slots", slots, dtype=torch.int32, shape=(None,))
    check_tensor(op, "block_table", block_table, dtype=torch.int32, shape=(None, None))
    check_tensor(op, "out", out, dtype=torch.int32, shape=(len(slots), width))
    launch(
        gather_block_table_kernel,
        lambda tiles: (len(slots), triton.cdiv(width, tiles["BLOCK"])),
        slots,
        block_table,
        out,
        block_table.stride(0),
        out.stride(0),
        width,
        config=COLUMN_TILES,
    )


def slot_mapping(
    positions: Tensor, req_rows: Tensor, lengths: Tensor, block_table: Tensor, *, out: Tensor
) -> None:
    """See the reference. Raises ValueError for a wrong shape, dtype or stride."""
    op, tokens = "slot_mapping", len(out)
    check_tensor(op, "out", out, dtype=torch.int64, shape=(None,))
    check_tensor(op, "positions", positions, dtype=torch.int64, shape=(tokens,))
    check_tensor(op, "req_rows", req_rows, dtype=torch.int32, shape=(tokens,))
    check_tensor(op, "lengths", lengths, dtype=torch.int32, shape=(tokens,))
    check_tensor(op, "block_table", block_table, dtype=torch.int32, shape=(None, None))
    launch(
        slot_mapping_kernel,
        lambda tiles: (triton.cdiv(tokens, tiles["BLOCK"]),),
        positions,
        req_rows,
        lengths,
        block_table,
        out,
        block_table.stride(0),
        tokens,
        config=TOKEN_TILES,
    )


def gather_rows(x: Tensor, rows: Tensor) -> Tensor:
    """See the reference. Raises ValueError for a wrong shape, dtype or stride."""
    check_tensor("gather_rows", "x", x, dtype=(torch.float32, torch.bfloat16), shape=(None, None))
    check_tensor("gather_rows", "rows", rows, dtype=torch.int64, shape=(None,))
    width = x.shape[1]
    out = torch.empty(len(rows), width, dtype=x.dtype, device=x.device)
    launch(
        gather_rows_kernel,
        lambda tiles: (len(rows), triton.cdiv(width, tiles["BLOCK"])),
        x,
        rows,
        out,
        x.stride(0),
        width,
        config=COLUMN_TILES,
    )
    return out


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
    """See the reference. Raises ValueError for a wrong shape, dtype or stride."""
    op = "post_update"
    _check_rows(op, slots, query_start=query_start, logits_start=logits_start)
    check_tensor(op, "sampled", sampled, dtype=torch.int64, shape=(len(slots), None))
    check_tensor(op, "counts", counts, dtype=torch.int32, shape=(len(slots),))
    _check_state(op, token_ids, computed=computed, total_len=total_len)
    width = sampled.shape[1]
    launch(
        post_update_kernel,
        (len(slots),),
        slots,
        query_start,
        logits_start,
        sampled,
        counts,
        computed,
        total_len,
        token_ids,
        sampled.stride(0),
        token_ids.stride(0),
        width,
        config=TileConfig(num_warps=1, num_stages=1),
        WIDTH=triton.next_power_of_2(max(width, 1)),
    )


def _check_rows(op: str, slots: Tensor, **starts: Tensor) -> None:
    check_tensor(op, "slots", slots, dtype=torch.int32, shape=(None,))
    for name, tensor in starts.items():
        check_tensor(op, name, tensor, dtype=torch.int32, shape=(len(slots) + 1,))


def _check_state(op: str, token_ids: Tensor, **by_slot: Tensor) -> None:
    check_tensor(op, "token_ids", token_ids, dtype=torch.int32, shape=(None, None))
    for name, tensor in by_slot.items():
        check_tensor(op, name, tensor, dtype=torch.int64, shape=(len(token_ids),))
