"""Refuses indices that point outside of a tensor before a kernel goes there (`debug.checks=true`).

A kernel cannot afford to look, and an index out of range is silent corruption. Looking makes the host wait
for the device, so this belongs to debugging.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from torch import Tensor

from paths.engine.batch import PAGE_SIZE, ForwardBatch


def checked(package: str, folder: str, op: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` behind its op's own check, which takes the same arguments and raises.

    That is `check_indices` of the folder's checks.py or, where a folder has several ops, `check_<op>`. An op
    without a checks.py takes no indices and is returned as it is.
    """
    if find_spec(f"{package}.{folder}.checks") is None:
        return function
    checks = import_module(f"{package}.{folder}.checks")
    own = getattr(checks, f"check_{op}", None)
    check_indices = own or checks.check_indices

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        check_indices(*args, **kwargs)
        return function(*args, **kwargs)

    return guarded


def refuse_outside(op: str, argument: str, values: Tensor, *, low: int, high: int) -> None:
    """Raise ValueError with the first entry of `values` outside low ≤ value < high and where it stands."""
    outside = ((values < low) | (values >= high)).nonzero()
    if outside.shape[0]:
        where = tuple(int(i) for i in outside[0])
        raise ValueError(
            f"{op}: {argument}{list(where)} is {int(values[where])}, allowed are {low} to {high - 1}"
        )


def refuse_bad_slots(op: str, slots: Tensor, blocks: int) -> None:
    """Slots are −1 or below (nothing is written) or inside a cache of `blocks` pages."""
    lowest = min(-1, int(slots.min())) if slots.numel() else -1
    refuse_outside(op, "slot_mapping", slots, low=lowest, high=blocks * PAGE_SIZE)


def refuse_bad_pages(op: str, batch: ForwardBatch, blocks: int) -> None:
    """Rows exist, and the pages that each row's length reaches are inside the cache."""
    live = batch.lengths > 0
    refuse_outside(op, "req_rows", batch.req_rows[live], low=0, high=batch.block_table.shape[0])
    width = batch.block_table.shape[1]
    refuse_outside(op, "lengths", batch.lengths[live], low=0, high=width * PAGE_SIZE + 1)
    pages = (batch.lengths[live] + PAGE_SIZE - 1) // PAGE_SIZE
    table = batch.block_table[batch.req_rows[live].long()]
    used = table.new_tensor(range(width))[None, :] < pages[:, None]
    refuse_outside(op, "block_table", table.where(used, table.new_zeros(())), low=0, high=blocks)
