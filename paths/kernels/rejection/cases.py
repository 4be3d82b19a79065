"""Check cases of rejection: ragged drafts, one-hot and drawn, greedy and random, masks, impossible drafts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from paths.kernels.cases import Call, Case, exact, randn, rows_far_apart
from paths.kernels.sample.cases import draw_parameters

REQUESTS = (0, 1, 63, 64, 65, 100, 111)


def check_cases() -> list[Case]:
    kinds = {"one-hot": (False, False), "drawn": (True, False), "greedy": (False, True)}
    plain = [
        Case(
            f"{kind}/{requests} requests, up to {drafts} drafts of {vocab}",
            partial(_make, requests=requests, drafts=drafts, vocab=vocab, probs=probs, all_greedy=greedy),
        )
        for kind, (probs, greedy) in kinds.items()
        for requests, drafts, vocab in zip(
            REQUESTS, (3, 5, 2, 0, 2, 3, 1), (50, 4500, 100, 10, 65, 10, 200), strict=True
        )
        if requests < 65 or kind == "greedy"
    ]
    masked = [
        Case(
            f"{kind}, masked/{requests} requests of {vocab}",
            partial(_make, requests=requests, drafts=3, vocab=vocab, probs=kinds[kind][0], masks=True),
        )
        for kind in ("one-hot", "drawn")
        for requests, vocab in ((1, 4500), (4, 30))
    ]
    edges = [
        Case(f"edges/{kind}", partial(_make_edges, probs=kinds[kind][0])) for kind in ("one-hot", "drawn")
    ]
    edges.append(
        Case(
            "edges/row offsets beyond 32 bits",
            partial(_make, requests=3, drafts=2, vocab=40, probs=False, all_greedy=True, far_apart=True),
        )
    )
    edges += [
        Case(
            f"greedy/{requests} requests, all with {drafts} drafts",
            partial(
                _make, requests=requests, drafts=drafts, vocab=40, probs=False, all_greedy=True, uniform=True
            ),
        )
        for requests, drafts in ((1, 3), (63, 1), (100, 5), (7, 0))
    ]
    edges.append(
        Case(
            "greedy/rows with ties, NaN and infinities",
            partial(_make, requests=9, drafts=3, vocab=67, probs=False, all_greedy=True, odd=True),
        )
    )
    wide = [
        Case(
            f"production/{requests} requests of {vocab}",
            partial(_make, requests=requests, drafts=2, vocab=vocab, probs=probs, masks=requests == 1),
            slow=True,
        )
        for requests, vocab, probs in ((3, 129280, True), (1, 154880, False))
    ]
    return [*edges, *masked, *plain, *wide]


def _make(
    generator: torch.Generator,
    device: torch.device,
    *,
    requests: int,
    drafts: int,
    vocab: int,
    probs: bool,
    all_greedy: bool = False,
    masks: bool = False,
    far_apart: bool = False,
    uniform: bool = False,
    odd: bool = False,
) -> Call:
    """Target rows of a request resemble each other, so that likely drafts are accepted for a while."""
    counts = torch.randint(0, drafts + 1, (requests,), generator=generator) + 1
    counts[1::7] = 0  # an unfinished prefill yields nothing
    counts[: requests if uniform else 1] = drafts + 1
    owner = torch.arange(requests).repeat_interleave(counts)
    rows = len(owner)
    entries = torch.randperm(requests + 3, generator=generator)[:requests].int()
    parameters = draw_parameters(
        generator, requests + 3, top_k=masks, top_p=masks, all_greedy=all_greedy, device=device
    )
    cpu = torch.device("cpu")
    logits = 2 * randn(generator, requests, vocab, device=cpu)[owner] + randn(
        generator, rows, vocab, device=cpu
    )
    if odd:
        logits = logits.round()
        logits[::3, ::2], logits[1::5] = float("nan"), -float("inf")
        logits[2::5, 13], logits[3::7] = float("inf"), float("nan")
    if far_apart:
        logits = rows_far_apart(rows, vocab, logits.dtype, device).copy_(logits)
    draft_ids = torch.where(
        torch.rand(rows, generator=generator) < 0.6,
        logits.argmax(-1).cpu(),
        torch.randint(-1, vocab, (rows,), generator=generator),
    )
    q = randn(generator, requests + 3, max(drafts, 1), vocab, device=cpu).softmax(-1) if probs else None
    return _call(
        device,
        logits=logits,
        draft_ids=draft_ids,
        probs=q,
        counts=counts.tolist(),
        entries=entries,
        parameters=parameters,
        positions=torch.randint(0, 2**20, (rows,), generator=generator),
        drafts=drafts,
        greedy=all_greedy,
    )


def _make_edges(generator: torch.Generator, device: torch.device, *, probs: bool) -> Call:
    """One draft per request: impossible under p, under q, under both; certain; no token; p equal to q."""
    vocab, requests, inf = 8, 13, float("inf")
    target = randn(generator, requests, vocab, device=torch.device("cpu"))
    q = randn(generator, requests, 1, vocab, device=torch.device("cpu")).softmax(-1)
    drafts = torch.tensor([0, 1, 2, 3, -1, vocab, 5, 6, 7, 0, 0, 0, 4])
    drafts[9:12] = target[9:12].argmax(-1)  # top-k leaves nothing else
    target[0, 0] = -inf  # p(d) = 0, and u = 0
    q[1, 0, 1] = 0.0  # q(d) = 0
    target[2, 2], q[2, 0, 2] = -inf, 0.0
    target[3] = torch.where(torch.arange(vocab) == 3, 0.0, -inf)  # p(d) = 1
    q[6, 0] = target[6].softmax(-1)
    q[7, 0] = 2.0  # nowhere below p: the residual is empty
    target[7] = -inf
    target[7, 5] = 1.0
    target[8, 3] = float("nan")
    target[12, 4:6] = inf
    logits = torch.stack([target, target.flip(1)], dim=1).flatten(0, 1)
    parameters = {
        "temperature": torch.ones(requests, device=device),
        "top_k": torch.tensor([0, 0, 0, 0, 2, 2, 0, 0, 3, 1, 1, 1, 0], dtype=torch.int32, device=device),
        "top_p": torch.ones(requests, device=device),
        "seeds": torch.randint(-(2**62), 2**62, (requests,), generator=generator).to(device),
    }
    parameters["seeds"][0] = seed_of_zero(position=0)
    return _call(
        device,
        logits=logits,
        draft_ids=drafts.repeat_interleave(2),
        probs=q if probs else None,
        counts=[2] * requests,
        entries=torch.arange(requests).int(),
        parameters=parameters,
        positions=torch.arange(2 * requests),
        drafts=1,
        greedy=False,
    )


def seed_of_zero(position: int) -> int:
    """The seed, as int64, whose uniform at `position` is exactly 0: the generator run backwards."""
    key = unmix(0xD1B54A32D192ED03)  # of token −1: mix(key − step) is 0 where key is the step
    seed = unmix(key - position * 0x9E3779B97F4A7C15)
    return seed - (1 << 64) if seed >= 1 << 63 else seed


def unmix(word: int) -> int:
    """Inverse of the generator's `mix`."""
    word %= 1 << 64
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
        unshifted = word
        for _ in range(64 // shift):
            unshifted = word ^ (unshifted >> shift)
        word = unshifted * pow(factor, -1, 1 << 64) % (1 << 64)
    return word


def _call(
    device: torch.device,
    *,
    logits: Tensor,
    draft_ids: Tensor,
    probs: Tensor | None,
    counts: Sequence[int],
    entries: Tensor,
    parameters: dict[str, Tensor],
    positions: Tensor,
    drafts: int,
    greedy: bool,
) -> Call:
    counts_tensor = torch.tensor(counts, dtype=torch.int64)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts_tensor.cumsum(0)]).int()
    kwargs = dict(
        parameters,
        row_starts=starts.to(device),
        rows=entries.repeat_interleave(counts_tensor).to(device),
        positions=positions.to(device),
        max_drafts=drafts,
        all_greedy=greedy,
    )
    args = (logits.to(device), draft_ids.to(device), None if probs is None else probs.to(device))
    return Call(
        args,
        kwargs,
        lambda result: {"tokens": result[0], "counts": result[1]},
        {"tokens": exact(), "counts": exact()},
    )
