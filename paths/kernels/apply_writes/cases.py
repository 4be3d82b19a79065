"""Check cases of apply_writes: empty and padding writes, every word of the state, unfilled blocks."""

from __future__ import annotations

from functools import partial

import torch

from paths.kernels.cases import Call, Case, exact

SLACK = 4096  # words beside the state: a write that is too long is seen there


def check_cases() -> list[Case]:
    """Named by the words of each write."""
    return [
        Case(f"words/{' '.join(map(str, counts)) or 'none'}", partial(_make, counts=counts))
        for counts in ((), (0,), (1,), (63, 0, 1), (1, 100, 111, 64), (1024, 1), (1025, 3, 2048), (7,) * 100)
    ]


def _make(generator: torch.Generator, device: torch.device, *, counts: tuple[int, ...]) -> Call:
    """The state is as long as all writes together; every third one is padding, and its words stay."""
    total = sum(counts)
    values = _random(generator, total + 5 + SLACK)[: total + 5].to(device)
    around = _random(generator, total + 3 + 2 * SLACK).to(device)
    state = around[SLACK : SLACK + total + 3]
    writes = torch.zeros(len(counts), 3, dtype=torch.int32)
    target, first = total + 3, 5
    for i, count in enumerate(counts):  # from the end of the state, so that sources and targets differ
        target -= count
        writes[i] = torch.tensor([-1 if i % 3 == 2 else target, first, count])
        first += count
    return Call(
        args=(state, writes.to(device), values),
        kwargs={"longest": max(counts, default=0)},
        outputs=lambda _: {"around": around},
        tolerance={"around": exact()},
    )


def _random(generator: torch.Generator, words: int) -> torch.Tensor:
    return torch.randint(-(2**31), 2**31, (words,), generator=generator, dtype=torch.int64).int()
