"""Check cases of sample: odd row counts, vocabularies of one part and of several, masks, ties, NaN."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from paths.kernels.cases import Call, Case, exact, randn, rows_far_apart

ROWS = (0, 1, 63, 64, 65, 100, 111)
MASKS = {"top-k": (True, False), "top-p": (False, True), "top-k and top-p": (True, True)}


def check_cases() -> list[Case]:
    greedy = [
        Case(f"greedy/{rows} rows of {vocab}", partial(_make, rows=rows, vocab=vocab, all_greedy=True))
        for rows, vocab in zip(ROWS, (100, 1, 4097, 1024, 100, 5000, 4096), strict=True)
    ]
    random = [
        Case(f"random/{rows} rows of {vocab}", partial(_make, rows=rows, vocab=vocab))
        for rows, vocab in zip(ROWS, (100, 5000, 100, 1000, 111, 65, 4097), strict=True)
    ]
    masked = [
        Case(
            f"{name}/{rows} rows of {vocab}{', ties' if ties else ''}",
            partial(_make, rows=rows, vocab=vocab, top_k=masks[0], top_p=masks[1], ties=ties),
        )
        for name, masks in MASKS.items()
        for rows, vocab, ties in ((1, 1, False), (20, 100, True), (3, 4500, True))
    ]
    hard = [
        Case("edges/infinities, NaN, equal logits", _make_edges),
        Case(
            "edges/row offsets beyond 32 bits",
            partial(_make, rows=4, vocab=70, top_k=True, top_p=True, far_apart=True),
        ),
    ]
    wide = [
        Case(
            f"production/{rows} rows of {vocab}",
            partial(_make, rows=rows, vocab=vocab, top_k=True, top_p=True, ties=rows == 2),
            slow=True,
        )
        for rows, vocab in ((3, 129280), (2, 154880))
    ]
    return [*hard, *masked, *greedy, *random, *wide]


def draw_parameters(
    generator: torch.Generator,
    entries: int,
    *,
    top_k: bool,
    top_p: bool,
    all_greedy: bool,
    device: torch.device,
) -> dict[str, Tensor]:
    """Temperatures with every fifth greedy, masks with every fourth off, seeds of either sign."""
    off = torch.arange(entries) % 4 == 3
    # hot and narrow, so that a token too many or too few is soon drawn
    heat = 4.0 if top_k or top_p else 1.0
    k = torch.randint(1, 6, (entries,), generator=generator, dtype=torch.int32)
    p = torch.rand(entries, generator=generator) * 0.2
    temperature = (torch.rand(entries, generator=generator) + 0.3) * heat
    temperature[torch.arange(entries) % 5 == 4] = 0.0
    parameters = {
        "temperature": torch.zeros(entries) if all_greedy else temperature,
        "top_k": torch.where(off, 0, k) if top_k else torch.zeros(entries, dtype=torch.int32),
        "top_p": torch.where(off, 1.0, p) if top_p else torch.ones(entries),
        "seeds": torch.randint(-(2**62), 2**62, (entries,), generator=generator),
    }
    return {name: tensor.to(device) for name, tensor in parameters.items()}


def draw_logits(
    generator: torch.Generator, rows: int, vocab: int, *, ties: bool, device: torch.device
) -> Tensor:
    """`[rows, vocab]` cut from wider rows of NaN; `ties`: steps of a half, −0 among them."""
    values = randn(generator, rows, vocab, device=torch.device("cpu")) * 3
    if ties:
        values = (values * 2).round() / 2
    wide = torch.full((rows, vocab + 7), torch.nan)
    wide[:, :vocab] = values
    return wide.to(device)[:, :vocab]


def _make(
    generator: torch.Generator,
    device: torch.device,
    *,
    rows: int,
    vocab: int,
    top_k: bool = False,
    top_p: bool = False,
    ties: bool = False,
    all_greedy: bool = False,
    far_apart: bool = False,
) -> Call:
    entries = rows + 3
    logits = draw_logits(generator, rows, vocab, ties=ties or all_greedy, device=device)
    if far_apart:
        logits = rows_far_apart(rows, vocab, logits.dtype, device).copy_(logits)
    parameters = draw_parameters(
        generator, entries, top_k=top_k, top_p=top_p, all_greedy=all_greedy, device=device
    )
    order = torch.randperm(entries, generator=generator)[:rows].int()
    positions = torch.randint(0, 2**20, (rows,), generator=generator)
    return _call(logits, parameters, rows=order.to(device), positions=positions.to(device), greedy=all_greedy)


def _make_edges(generator: torch.Generator, device: torch.device) -> Call:
    """Rows of one kind each, under all masks, without a row map."""
    inf, nan = float("inf"), float("nan")
    vocab, rows = 200, 12
    logits = randn(generator, rows, vocab, device=torch.device("cpu"))
    logits[0] = 0.0
    logits[1, :] = -inf
    logits[2, 50:60] = inf
    logits[3:6, ::2] = nan
    logits[6, 1:] = -inf
    logits[7] = torch.where(torch.arange(vocab) % 2 == 0, -0.0, 0.0)
    logits[8, :] = nan
    logits[9, :100] = -inf
    logits[10] *= 1e30
    logits[11] = -100.0
    parameters = {
        "temperature": torch.tensor([1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.3, 1.0, 0.01]),
        "top_k": torch.tensor([7, 3, 0, 60, 60, 60, 5, 11, 1, vocab, 4, 0], dtype=torch.int32),
        "top_p": torch.tensor([0.5, 0.5, 0.35, 1.0, 0.9, 1.0, 0.1, 1.0, 0.5, 0.999, 0.5, 0.05]),
        "seeds": torch.tensor([0, 1, -1, 2**63 - 1, -(2**63), 5, 6, 7, 8, 9, 10, 11]),
    }
    parameters = {name: tensor.to(device) for name, tensor in parameters.items()}
    positions = torch.arange(rows, device=device) * 1000
    return _call(logits.to(device), parameters, rows=None, positions=positions, greedy=False)


def _call(
    logits: Tensor, parameters: dict[str, Tensor], *, rows: Tensor | None, positions: Tensor, greedy: bool
) -> Call:
    kwargs: dict[str, Any] = dict(parameters, positions=positions, rows=rows, all_greedy=greedy)
    return Call((logits,), kwargs, lambda tokens: {"tokens": tokens}, {"tokens": exact()})
