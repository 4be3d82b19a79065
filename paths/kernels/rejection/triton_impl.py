"""rejection in Triton: five launches without drafts' probabilities leaving the device; nothing is sorted.

Every logits row is read twice (its largest, then its mass) and the final row of a request a third time, with
the draft distribution of that row; a row with top-k or top-p also as often as in `sample`. A greedy batch
reads every row once. What is equal in all implementations and what is close: see `sample`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from paths.kernels.launching import TileConfig, launch
from paths.kernels.sample.triton_impl import (
    MASS_ONE,
    PART_TILES,
    TOKENS_PER_PART,
    accept_uniform,
    check_arguments,
    first_of_largest,
    fixed_mass,
    gumbel,
    is_kept,
    load_logits,
    noise_key,
    relative_weight,
    threshold_rows,
)
from paths.kernels.tensors import check_tensor

NO_ID = tl.constexpr(2**31 - 1)


@triton.jit
def row_heat(temperature, rows, row, ALL_GREEDY: tl.constexpr):
    """Temperature of a logits row, and whether it draws; greedy rows are read undivided."""
    if ALL_GREEDY:
        return 1.0, False
    else:
        heat = tl.load(temperature + tl.load(rows + row).to(tl.int64))
        return tl.where(heat != 0.0, heat, 1.0), heat != 0.0


@triton.jit
def rejection_largest_kernel(
    logits,
    temperature,
    rows,
    part_values,
    part_ids,
    stride,
    vocab,
    per_part,
    ALL_GREEDY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (logits rows, parts): largest scaled logit of a part and its lowest id."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    first = part * per_part
    logits += row * stride
    heat, _ = row_heat(temperature, rows, row, ALL_GREEDY)
    best, best_id = tl.full((), float("-inf"), tl.float32), first
    for start in range(first, tl.minimum(first + per_part, vocab), BLOCK):
        ids = start + tl.arange(0, BLOCK)
        x = load_logits(logits, ids, ids < vocab, heat)
        best, best_id = first_of_largest(x, ids, best, best_id)
    at = row * tl.num_programs(1) + part
    tl.store(part_values + at, best)
    tl.store(part_ids + at, best_id)


@triton.jit
def row_largest(part_values, row, parts, PARTS: tl.constexpr):
    """Largest scaled logit of a row, from its parts."""
    part = tl.arange(0, PARTS)
    return tl.max(tl.load(part_values + row * parts + part, mask=part < parts, other=float("-inf")), axis=0)


@triton.jit
def lowest_winner(values, ids):
    """Lowest id of the largest value."""
    return tl.min(tl.where(values == tl.max(values, axis=0), ids, NO_ID), axis=0)


@triton.jit
def row_total(part_masses, row, parts, PARTS: tl.constexpr):
    """Sum of a row's relative weights, float32."""
    part = tl.arange(0, PARTS)
    total = tl.sum(tl.load(part_masses + row * parts + part, mask=part < parts, other=0), axis=0)
    return (total.to(tl.float64) / MASS_ONE).to(tl.float32)


@triton.jit
def rejection_mass_kernel(
    logits,
    temperature,
    rows,
    thresholds,
    last_ties,
    part_values,
    part_masses,
    stride,
    vocab,
    per_part,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (logits rows, parts): fixed-point mass of a part's kept tokens; greedy rows need none."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    parts = tl.num_programs(1)
    first = part * per_part
    logits += row * stride
    heat, draws = row_heat(temperature, rows, row, False)
    if draws:
        largest = row_largest(part_values, row, parts, PARTS)
        threshold, last_tie = tl.load(thresholds + row), tl.load(last_ties + row)
        mass = tl.zeros((), tl.int64)
        for start in range(first, tl.minimum(first + per_part, vocab), BLOCK):
            ids = start + tl.arange(0, BLOCK)
            x = load_logits(logits, ids, ids < vocab, heat)
            kept = is_kept(x, ids, threshold, last_tie) & (ids < vocab)
            mass += tl.sum(tl.where(kept, fixed_mass(x, largest), 0), axis=0)
        tl.store(part_masses + row * parts + part, mass)


@triton.jit
def rejection_verify_kernel(
    logits,
    draft_ids,
    draft_probs,
    row_starts,
    temperature,
    seeds,
    positions,
    rows,
    thresholds,
    last_ties,
    part_values,
    part_ids,
    part_masses,
    tokens,
    counts,
    final_rows,
    stride,
    entry_stride,
    draft_stride,
    vocab,
    parts,
    width,
    HAS_PROBS: tl.constexpr,
    ALL_GREEDY: tl.constexpr,
    PARTS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """One program per request: drafts in order until one is rejected; final_rows: the row to draw from."""
    request = tl.program_id(0).to(tl.int64)
    first = tl.load(row_starts + request).to(tl.int64)
    end = tl.load(row_starts + request + 1).to(tl.int64)
    column, part = tl.arange(0, WIDTH), tl.arange(0, PARTS)
    out = tl.full((WIDTH,), -1, tl.int64)
    row = first
    going = first < end
    final = tl.full((), -1, tl.int64)
    while going:
        heat, draws = row_heat(temperature, rows, row, ALL_GREEDY)
        is_last = row == end - 1
        draft = tl.load(draft_ids + row)
        values = tl.load(part_values + row * parts + part, mask=part < parts, other=float("-inf"))
        ids = tl.load(part_ids + row * parts + part, mask=part < parts, other=NO_ID)
        token = lowest_winner(values, ids).to(tl.int64)
        accept = (token == draft) & (is_last == 0)
        if not ALL_GREEDY:  # noqa: SIM102  # known at compile time, the inner one is not
            if draws:
                entry = tl.load(rows + row).to(tl.int64)
                is_token = (draft >= 0) & (draft < vocab) & (is_last == 0)
                known = tl.where(is_token, draft, 0)
                x = load_logits(logits + row * stride, known, is_token, heat)
                kept = is_kept(x, known, tl.load(thresholds + row), tl.load(last_ties + row))
                weight = tl.where(kept, relative_weight(x, tl.max(values, axis=0)), 0.0)
                p = tl.div_rn(weight, row_total(part_masses, row, parts, PARTS))
                q = tl.full((), 1.0, tl.float32)
                if HAS_PROBS:
                    at = entry * entry_stride + (row - first) * draft_stride + known
                    q = tl.load(draft_probs + at, mask=is_token, other=0.0)
                possible = is_token & (q > 0.0)
                ratio = p.to(tl.float64) / tl.where(possible, q, 1.0).to(tl.float64)
                u = accept_uniform(noise_key(tl.load(seeds + entry), tl.load(positions + row)))
                accept = possible & (u < ratio)
                token = tl.where(accept, draft, -1)  # drawn later
                final = tl.where(accept, -1, row)
        out = tl.where(column == row - first, token, out)
        row += 1
        going = accept
    tl.store(tokens + request * width + column, out, mask=column < width)
    tl.store(counts + request, (row - first).to(tl.int32))
    tl.store(final_rows + request, final)


@triton.jit
def rejection_draw_kernel(
    logits,
    draft_ids,
    draft_probs,
    row_starts,
    temperature,
    seeds,
    positions,
    rows,
    thresholds,
    last_ties,
    part_values,
    part_masses,
    final_rows,
    drawn_values,
    drawn_ids,
    stride,
    entry_stride,
    draft_stride,
    vocab,
    per_part,
    HAS_PROBS: tl.constexpr,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Grid (requests, parts): a part's winners under the residual and under p itself, [R, parts, 2]."""
    request = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    parts = tl.num_programs(1)
    row = tl.load(final_rows + request)
    if row >= 0:
        first_row = tl.load(row_starts + request).to(tl.int64)
        end_row = tl.load(row_starts + request + 1).to(tl.int64)
        entry = tl.load(rows + row).to(tl.int64)
        heat = tl.load(temperature + entry)
        key = noise_key(tl.load(seeds + entry), tl.load(positions + row))
        threshold, last_tie = tl.load(thresholds + row), tl.load(last_ties + row)
        largest = row_largest(part_values, row, parts, PARTS)
        total = row_total(part_masses, row, parts, PARTS)
        draft = tl.load(draft_ids + row)
        differs = (draft >= 0) & (draft < vocab) & (row < end_row - 1)
        first = part * per_part
        best, best_id = tl.full((), float("-inf"), tl.float32), first
        plain_best, plain_id = best, first
        for start in range(first, tl.minimum(first + per_part, vocab), BLOCK):
            ids = start + tl.arange(0, BLOCK)
            x = load_logits(logits + row * stride, ids, ids < vocab, heat)
            kept = is_kept(x, ids, threshold, last_tie)
            noise = gumbel(key, ids)
            plain = tl.where(kept, x + noise, float("-inf"))
            plain_best, plain_id = first_of_largest(plain, ids, plain_best, plain_id)
            score = plain
            if differs:
                if HAS_PROBS:
                    at = entry * entry_stride + (row - first_row) * draft_stride + ids
                    q = tl.load(draft_probs + at, mask=ids < vocab, other=1.0)
                    p = tl.where(kept, tl.div_rn(relative_weight(x, largest), total), 0.0)
                    more = p > q
                    log_residual = tl.log(tl.where(more, p - q, 1.0))
                    score = tl.where(more, log_residual + noise, float("-inf"))
                else:
                    score = tl.where(ids == draft, float("-inf"), plain)
            best, best_id = first_of_largest(score, ids, best, best_id)
        at = (request * parts + part) * 2
        tl.store(drawn_values + at, best)
        tl.store(drawn_ids + at, best_id)
        tl.store(drawn_values + at + 1, plain_best)
        tl.store(drawn_ids + at + 1, plain_id)


@triton.jit
def rejection_merge_kernel(
    drawn_values,
    drawn_ids,
    final_rows,
    counts,
    tokens,
    parts,
    width,
    PARTS: tl.constexpr,
):
    """One program per request: the last token is the residual's winner, or p's where that is empty."""
    request = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, PARTS)
    if tl.load(final_rows + request) >= 0:
        at = (request * parts + part) * 2
        values = tl.load(drawn_values + at, mask=part < parts, other=float("-inf"))
        ids = tl.load(drawn_ids + at, mask=part < parts, other=NO_ID)
        plain = tl.load(drawn_values + at + 1, mask=part < parts, other=float("-inf"))
        plain_ids = tl.load(drawn_ids + at + 1, mask=part < parts, other=NO_ID)
        has_residual = tl.max(values, axis=0) > float("-inf")
        winner = tl.where(has_residual, lowest_winner(values, ids), lowest_winner(plain, plain_ids))
        last = tl.load(counts + request) - 1
        tl.store(tokens + request * width + last, winner.to(tl.int64))


def rejection(
    logits: Tensor,
    draft_ids: Tensor,
    draft_probs: Tensor | None,
    *,
    row_starts: Tensor,
    rows: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
    max_drafts: int,
    all_greedy: bool,
) -> tuple[Tensor, Tensor]:
    """See the reference. Raises ValueError for a wrong shape, dtype or stride."""
    check_arguments(
        "rejection", logits, temperature=temperature, top_k=top_k, top_p=top_p, seeds=seeds, rows=rows
    )
    for name, tensor in (("draft_ids", draft_ids), ("positions", positions)):
        check_tensor("rejection", name, tensor, dtype=torch.int64, shape=(len(logits),))
    check_tensor("rejection", "row_starts", row_starts, dtype=torch.int32, shape=(None,))
    if draft_probs is not None:
        shape = (len(temperature), None, logits.shape[1])
        check_tensor("rejection", "draft_probs", draft_probs, dtype=torch.float32, shape=shape)
    device, (count, vocab), requests = logits.device, logits.shape, len(row_starts) - 1
    parts = triton.cdiv(vocab, TOKENS_PER_PART)
    padded_parts = triton.next_power_of_2(parts)
    part_values = torch.empty(count, parts, dtype=torch.float32, device=device)
    part_ids = torch.empty(count, parts, dtype=torch.int32, device=device)
    launch(
        rejection_largest_kernel,
        (count, parts),
        logits,
        None if all_greedy else temperature,
        None if all_greedy else rows,
        part_values,
        part_ids,
        logits.stride(0),
        vocab,
        TOKENS_PER_PART,
        config=PART_TILES,
        ALL_GREEDY=all_greedy,
    )
    thresholds = last_ties = part_masses = None
    if not all_greedy:
        thresholds, last_ties = threshold_rows(
            logits, temperature=temperature, top_k=top_k, top_p=top_p, rows=rows
        )
        part_masses = torch.empty(count, parts, dtype=torch.int64, device=device)
        launch(
            rejection_mass_kernel,
            (count, parts),
            logits,
            temperature,
            rows,
            thresholds,
            last_ties,
            part_values,
            part_masses,
            logits.stride(0),
            vocab,
            TOKENS_PER_PART,
            config=PART_TILES,
            PARTS=padded_parts,
        )
    width = max_drafts + 1
    tokens = torch.empty(requests, width, dtype=torch.int64, device=device)
    counts = torch.empty(requests, dtype=torch.int32, device=device)
    final_rows = torch.empty(requests, dtype=torch.int64, device=device)
    strides = (0, 0) if draft_probs is None else draft_probs.stride()[:2]
    launch(
        rejection_verify_kernel,
        (requests,),
        logits,
        draft_ids,
        None if all_greedy else draft_probs,
        row_starts,
        None if all_greedy else temperature,
        None if all_greedy else seeds,
        None if all_greedy else positions,
        None if all_greedy else rows,
        thresholds,
        last_ties,
        part_values,
        part_ids,
        part_masses,
        tokens,
        counts,
        final_rows,
        logits.stride(0),
        *strides,
        vocab,
        parts,
        width,
        config=TileConfig(num_warps=1, num_stages=1),
        HAS_PROBS=draft_probs is not None and not all_greedy,
        ALL_GREEDY=all_greedy,
        PARTS=padded_parts,
        WIDTH=triton.next_power_of_2(width),
    )
    if all_greedy:
        return tokens, counts
    drawn_values = torch.empty(requests, parts, 2, dtype=torch.float32, device=device)
    drawn_ids = torch.empty(requests, parts, 2, dtype=torch.int32, device=device)
    launch(
        rejection_draw_kernel,
        (requests, parts),
        logits,
        draft_ids,
        draft_probs,
        row_starts,
        temperature,
        seeds,
        positions,
        rows,
        thresholds,
        last_ties,
        part_values,
        part_masses,
        final_rows,
        drawn_values,
        drawn_ids,
        logits.stride(0),
        *strides,
        vocab,
        TOKENS_PER_PART,
        config=PART_TILES,
        HAS_PROBS=draft_probs is not None,
        PARTS=padded_parts,
    )
    launch(
        rejection_merge_kernel,
        (requests,),
        drawn_values,
        drawn_ids,
        final_rows,
        counts,
        tokens,
        parts,
        width,
        config=TileConfig(num_warps=1, num_stages=1),
        PARTS=padded_parts,
    )
    return tokens, counts
