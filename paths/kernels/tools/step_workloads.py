"""Bench workloads of what stands around the model in a step: preparation, sampling's neighbours, MoE block.

A V2 step of 1024 requests with three drafts each, in persistent state of 1024 slots.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from paths.dsa_mrv2.kernels.arguments import MoeBlock
from paths.engine.batch import PAGE_SIZE
from paths.kernels.tools.roofline import Cost
from paths.kernels.tools.workloads import (
    CHOSEN,
    DECODE,
    EXPERT_WIDTH,
    EXPERTS,
    HIDDEN,
    KEYS,
    TOP_K,
    VOCABULARY,
    Arguments,
    Workload,
    bf16,
    expert_cost,
    f32,
)

REQUESTS, DRAFTS = 1024, 3
TOKENS = REQUESTS * (DRAFTS + 1)
LABEL = f"{REQUESTS} requests, {DRAFTS} drafts"
JUDGED = 256  # requests whose drafts come with distributions: 0.4 GB of them


def step_workloads() -> list[Workload]:
    return [*_preparation(), *_drafts(), *_logits(), _apply_writes(), _rejection(), _moe_block()]


def _starts(device: torch.device, requests: int = REQUESTS) -> Tensor:
    return torch.arange(0, requests * (DRAFTS + 1) + 1, DRAFTS + 1, dtype=torch.int32, device=device)


def _ints(device: torch.device, *shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32, device=device)


def _longs(device: torch.device, *shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64, device=device)


def _preparation() -> list[Workload]:
    def slots(d: torch.device) -> Tensor:
        return torch.arange(REQUESTS, dtype=torch.int32, device=d)

    def positions(d: torch.device) -> Arguments:
        out = {"positions": _longs(d, TOKENS), "req_rows": _ints(d, TOKENS), "lengths": _ints(d, TOKENS)}
        return (slots(d), _starts(d), _longs(d, REQUESTS)), out | {"seq_lens": _ints(d, REQUESTS)}

    def tokens(d: torch.device) -> Arguments:
        starts, state = _starts(d), _longs(d, REQUESTS)
        known = (_longs(d, TOKENS), _ints(d, REQUESTS, KEYS), state, _longs(d, REQUESTS, DRAFTS))
        longs = {
            name: _longs(d, TOKENS) for name in ("input_ids", "logits_rows", "next_positions", "draft_ids")
        }
        return (slots(d), starts, starts, *known), longs | {"logits_slots": _ints(d, TOKENS)}

    def table(d: torch.device) -> Arguments:
        pages = KEYS // PAGE_SIZE
        return (slots(d), _ints(d, REQUESTS, pages)), {"out": _ints(d, REQUESTS, pages)}

    def mapping(d: torch.device) -> Arguments:
        rows = slots(d).repeat_interleave(DRAFTS + 1)
        lengths, blocks = torch.ones_like(rows), _ints(d, REQUESTS, KEYS // PAGE_SIZE)
        return (_longs(d, TOKENS), rows, lengths, blocks), {"out": _longs(d, TOKENS)}

    def rows(d: torch.device) -> Arguments:
        return (bf16(d, TOKENS, HIDDEN), torch.arange(TOKENS, device=d)), {}

    def update(d: torch.device) -> Arguments:
        starts, counts = _starts(d), torch.ones(REQUESTS, dtype=torch.int32, device=d)
        state = {"computed": _longs(d, REQUESTS), "total_len": _longs(d, REQUESTS)}
        sampled = _longs(d, REQUESTS, DRAFTS + 1)
        return (slots(d), starts, starts, sampled, counts), state | {"token_ids": _ints(d, REQUESTS, KEYS)}

    copied = 8 * REQUESTS * (KEYS // PAGE_SIZE)
    # bytes a token and bytes a request, as the kernels' docstrings count them
    functions = {
        "prepare_positions": (positions, 16 * TOKENS + 20 * REQUESTS),
        "combine_tokens": (tokens, 28 * TOKENS + 28 * TOKENS),
        "gather_block_table": (table, copied),
        "slot_mapping": (mapping, 28 * TOKENS),
        "gather_rows": (rows, 2 * 2 * TOKENS * HIDDEN + 8 * TOKENS),
        "post_update": (update, REQUESTS * (4 + 4 + 4 + 4 + 2 * 8 * 2 + 8 + 4)),
    }
    return [
        Workload(
            op="prepare_inputs",
            label=f"{function}, {LABEL}",
            cost=Cost(bytes=moved),
            arguments=arguments,
            function=function,
        )
        for function, (arguments, moved) in functions.items()
    ]


def _drafts() -> list[Workload]:
    def requests(d: torch.device) -> Tensor:
        return torch.arange(REQUESTS, dtype=torch.int32, device=d)

    def shift(d: torch.device) -> Arguments:
        starts, counts = _starts(d), torch.ones(REQUESTS, dtype=torch.int32, device=d)
        known = (_longs(d, TOKENS), _ints(d, REQUESTS, KEYS))
        rows = {
            "input_ids": _longs(d, TOKENS),
            "lengths": _ints(d, TOKENS),
            "slot_mapping": _longs(d, TOKENS),
        }
        made = {"last_rows": _longs(d, REQUESTS), "last_positions": _longs(d, REQUESTS)}
        made |= {"draft_slots": requests(d), "last_lengths": requests(d)}
        return (requests(d), starts, starts, counts, *known), rows | made

    def advance(d: torch.device) -> Arguments:
        longs = {name: _longs(d, REQUESTS) for name in ("input_ids", "positions", "slot_mapping")}
        ints = {name: _ints(d, REQUESTS) for name in ("lengths", "req_rows")}
        kept = {"draft_tokens": _longs(d, REQUESTS, DRAFTS), "step": 0}
        drafted, limits = _longs(d, REQUESTS), torch.full((REQUESTS,), KEYS, device=d)
        table = _ints(d, REQUESTS, KEYS // PAGE_SIZE)
        return (drafted, requests(d), _longs(d, REQUESTS), limits, table), longs | ints | kept

    functions = {
        "shift_tokens": (shift, 36 * TOKENS + 40 * REQUESTS),
        "advance_drafts": (advance, 80 * REQUESTS),
    }
    return [
        Workload(
            op="prepare_drafts",
            label=f"{function}, {LABEL}",
            cost=Cost(bytes=moved),
            arguments=arguments,
            function=function,
        )
        for function, (arguments, moved) in functions.items()
    ]


def _logits() -> list[Workload]:
    def select(d: torch.device) -> Arguments:
        return (_ints(d, TOKENS),), {"out": _ints(d, TOKENS, TOP_K)}

    def count(d: torch.device) -> Arguments:
        return (f32(d, REQUESTS, VOCABULARY),), {"total": _longs(d, 1)}

    def mask(d: torch.device) -> Arguments:
        entries = torch.arange(REQUESTS, dtype=torch.int32, device=d)
        return (f32(d, REQUESTS, VOCABULARY), entries, entries), {}

    read = 4 * REQUESTS * VOCABULARY
    rows = f"{REQUESTS} rows of {VOCABULARY}"
    chosen = Cost(bytes=4 * TOKENS * (TOP_K + 1))
    return [
        Workload(op="select_all", label=f"{TOKENS} rows of {TOP_K}", cost=chosen, arguments=select),
        Workload(op="count_nan_rows", label=rows, cost=Cost(bytes=read), arguments=count),
        Workload(op="mask_tokens", label=rows, cost=Cost(bytes=12 * REQUESTS), arguments=mask),
    ]


def _apply_writes() -> Workload:
    words = 2048

    def writes(d: torch.device) -> Arguments:
        entry = torch.arange(REQUESTS, dtype=torch.int32, device=d)
        queued = torch.stack([entry * words, entry * words, torch.full_like(entry, words)], dim=1)
        state, values = _ints(d, REQUESTS * words), _ints(d, REQUESTS * words)
        return (state, queued.contiguous(), values), {"longest": words}

    cost = Cost(bytes=REQUESTS * (12 + 8 * words))
    return Workload(
        op="apply_writes", label=f"{REQUESTS} writes of {words} words", cost=cost, arguments=writes
    )


def _rejection() -> Workload:
    rows = JUDGED * (DRAFTS + 1)

    def verify(d: torch.device) -> Arguments:
        entry = torch.arange(JUDGED, dtype=torch.int32, device=d)
        options: dict[str, Any] = {
            "row_starts": _starts(d, JUDGED),
            "rows": entry.repeat_interleave(DRAFTS + 1),
            "temperature": torch.ones(JUDGED, device=d),
            "top_k": _ints(d, JUDGED),
            "top_p": torch.ones(JUDGED, device=d),
            "seeds": torch.arange(JUDGED, device=d),
            "positions": torch.arange(rows, device=d),
            "max_drafts": DRAFTS,
            "all_greedy": False,
        }
        probabilities = torch.full((JUDGED, DRAFTS, VOCABULARY), 1 / VOCABULARY, device=d)
        return (f32(d, rows, VOCABULARY), _longs(d, rows), probabilities), options

    # p needs each row's logits whole; of q only the row of a rejection, counted for every request
    cost = Cost(bytes=4 * VOCABULARY * (rows + JUDGED))
    return Workload(op="rejection", label=f"{JUDGED} requests, {DRAFTS} drafts", cost=cost, arguments=verify)


def _moe_block() -> Workload:
    def block(d: torch.device) -> Arguments:
        joined = EXPERTS + 1
        weights = MoeBlock(
            gate=f32(d, EXPERTS, HIDDEN),
            bias=f32(d, EXPERTS),
            w13=bf16(d, joined, 2 * EXPERT_WIDTH, HIDDEN),
            w2=bf16(d, joined, HIDDEN, EXPERT_WIDTH),
            n_group=8,
            topk_group=4,
            top_k=CHOSEN,
            norm=True,
            scaling=2.5,
        )
        return (bf16(d, DECODE, HIDDEN), weights), {}

    experts = expert_cost(DECODE)
    cost = Cost(bytes=experts.bytes + 4 * EXPERTS * HIDDEN, flops=experts.flops)
    return Workload(op="moe_block", label=f"{DECODE} rows", cost=cost, arguments=block)
