"""Index checks of the preparation ops for `debug.checks=true`, one function per op."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from paths.engine.batch import PAGE_SIZE
from paths.kernels.guards import refuse_outside


def check_prepare_positions(
    slots: Tensor, query_start: Tensor, computed: Tensor, *, positions: Tensor, **_: Any
) -> None:
    """Raises ValueError for slots without state and for starts that fall or pass the buffers."""
    _check_rows("prepare_positions", slots, query_start, slots_end=len(computed), entries=len(positions))


def check_combine_tokens(
    slots: Tensor,
    query_start: Tensor,
    logits_start: Tensor,
    positions: Tensor,
    token_ids: Tensor,
    total_len: Tensor,
    draft_tokens: Tensor,
    *,
    logits_rows: Tensor,
    **_: Any,
) -> None:
    """Also refuses more logits rows than tokens: they would belong to the request before."""
    op = "combine_tokens"
    _check_rows(op, slots, query_start, slots_end=len(total_len), entries=len(positions))
    _check_rows(op, slots, logits_start, slots_end=len(total_len), entries=len(logits_rows))
    spare = query_start.diff() - logits_start.diff()
    refuse_outside(op, "tokens without logits", spare, low=0, high=len(positions) + 1)
    longest = token_ids.shape[1] + draft_tokens.shape[1]
    refuse_outside(op, "positions", positions, low=0, high=longest)


def check_gather_block_table(slots: Tensor, block_table: Tensor, **_: Any) -> None:
    refuse_outside("gather_block_table", "slots", slots, low=-1, high=len(block_table))


def check_slot_mapping(
    positions: Tensor, req_rows: Tensor, lengths: Tensor, block_table: Tensor, **_: Any
) -> None:
    live = lengths > 0
    rows, pages = block_table.shape
    refuse_outside("slot_mapping", "req_rows", req_rows[live], low=0, high=rows)
    refuse_outside("slot_mapping", "positions", positions[live], low=0, high=pages * PAGE_SIZE)


def check_gather_rows(x: Tensor, rows: Tensor) -> None:
    refuse_outside("gather_rows", "rows", rows, low=0, high=len(x))


def check_post_update(
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
    """Also refuses counts beyond the row of sampled tokens, and tokens beyond the longest request."""
    op = "post_update"
    refuse_outside(op, "slots", slots, low=-1, high=len(computed))
    refuse_outside(op, "counts", counts, low=0, high=sampled.shape[1] + 1)
    live = (slots >= 0) & (logits_start.diff() > 0)
    after = total_len[slots[live].long()] + counts[live]
    refuse_outside(op, "total_len after the step", after, low=0, high=token_ids.shape[1] + 1)


def _check_rows(op: str, slots: Tensor, starts: Tensor, *, slots_end: int, entries: int) -> None:
    refuse_outside(op, "slots", slots, low=-1, high=slots_end)
    refuse_outside(op, "starts", starts, low=0, high=entries + 1)
    refuse_outside(op, "entries per row", starts.diff(), low=0, high=entries + 1)
