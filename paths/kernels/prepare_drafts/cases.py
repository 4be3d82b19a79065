"""Check cases of the preparation of drafts: ragged steps, rejected drafts, padded rows, limits."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from paths.kernels.cases import Call, Case, exact
from paths.kernels.prepare_inputs.cases import POISON, TOKENS, DrawnStep


def check_cases() -> list[Case]:
    cases = [
        Case(
            f"{name}/{tokens} tokens, {rows} rows, {drafts} drafts, {spare} spare",
            partial(_make, build=build, tokens=tokens, rows=rows, drafts=drafts, spare=spare),
        )
        for name, build in _BUILDERS.items()
        for tokens, rows, drafts, spare in zip(
            TOKENS, (0, 1, 5, 16, 65, 33, 7), (1, 1, 3, 1, 1, 5, 2), (0, 2, 1, 0, 300, 28, 7), strict=True
        )
    ]
    wide = [
        Case(
            f"{name}/production: 256 rows",
            partial(_make, build=build, tokens=200, rows=256, drafts=3, spare=800),
            slow=True,
        )
        for name, build in _BUILDERS.items()
    ]
    return [*cases, *wide]


def _make(
    generator: torch.Generator,
    device: torch.device,
    *,
    build: Callable[[DrawnStep, torch.Generator], Call],
    tokens: int,
    rows: int,
    drafts: int,
    spare: int,
) -> Call:
    step = DrawnStep(generator, device, tokens=tokens, rows=rows, drafts=drafts, slack=spare)
    return build(step, generator)


def _shift_tokens(step: DrawnStep, _: torch.Generator) -> Call:
    made = step.positions()
    size = len(made["positions"])
    entries = step.rows + step.slack
    buffers = {
        "input_ids": step.buffer(size, torch.int64),
        "lengths": made["lengths"],
        "slot_mapping": torch.arange(size, device=step.device),
        "draft_slots": step.buffer(entries, torch.int32),
        "last_rows": step.buffer(entries, torch.int64),
        "last_positions": step.buffer(entries, torch.int64),
        "last_lengths": step.buffer(entries, torch.int32),
    }
    args = (
        step.slots,
        step.query_start,
        step.logits_start,
        step.counts,
        made["positions"],
        step.token_ids,
    )
    return _call("shift_tokens", args, buffers, buffers)


def _advance_drafts(step: DrawnStep, generator: torch.Generator) -> Call:
    """Every third request drafts nothing, and some stand just before their limit, at it and behind it."""
    entries, device = step.rows, step.device
    slots = step.slots.clone()
    slots[1::3] = -1
    last = torch.randint(0, 200, (entries,), generator=generator).to(device)
    limits = torch.full((step.num_slots,), 250, device=device)
    number = step.drafts - 1
    for at, slot in enumerate(slots.tolist()):
        if slot >= 0:
            limits[slot] = int(last[at]) + number + at % 4
    buffers = {
        "draft_tokens": step.draft_tokens,
        "input_ids": step.buffer(entries, torch.int64),
        "positions": step.buffer(entries, torch.int64),
        "lengths": step.buffer(entries, torch.int32),
        "slot_mapping": step.buffer(entries, torch.int64),
        "req_rows": step.buffer(entries, torch.int32),
    }
    table = step.block_table[step.slots.long().clamp(min=0)]
    tokens = torch.randint(0, 10**6, (entries,), generator=generator).to(device)
    last[slots < 0] = -POISON  # positions of nobody are not to be used
    return _call("advance_drafts", (tokens, slots, last, limits, table), buffers, buffers, step=number)


def _call(
    function: str,
    inputs: tuple[Tensor, ...],
    kwargs: dict[str, Tensor],
    written: dict[str, Tensor],
    **scalars: int,
) -> Call:
    def outputs(_: Any) -> dict[str, Tensor]:
        return written

    tolerance = dict.fromkeys(written, exact())
    return Call(inputs, {**kwargs, **scalars}, outputs, tolerance, function=function)


_BUILDERS: dict[str, Callable[[DrawnStep, torch.Generator], Call]] = {
    "shift_tokens": _shift_tokens,
    "advance_drafts": _advance_drafts,
}
