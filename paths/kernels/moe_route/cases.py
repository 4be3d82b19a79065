"""Check cases of moe_route: odd row counts, groups, ties, biases that decide, rows of extreme logits.

Rows of random cases are drawn until no selection hangs on the last bits of a sum.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from paths.kernels.cases import Call, Case, close, exact, randn
from paths.kernels.mla_cache_write.cases import ROWS, SOURCES

MARGIN = 1e-5  # between scores that are ranked against each other


def check_cases() -> list[Case]:
    grouped = [
        Case(f"groups/{rows} rows", partial(_random, rows=rows, experts=32, groups=8, kept=3, chosen=4))
        for rows in ROWS
    ]
    flat = [
        Case(f"no groups/{rows} rows", partial(_random, rows=rows, experts=20, groups=1, kept=1, chosen=4))
        for rows in (1, 65)
    ]
    others = [
        Case(
            "odd groups/9 rows",
            partial(_random, rows=9, experts=21, groups=3, kept=2, chosen=5, norm=False, source="float32"),
        ),
        Case(
            "split width/70 rows",
            partial(_random, rows=70, experts=16, groups=2, kept=1, chosen=2, hidden=2100),
        ),
        Case("ties/equal scores", partial(_ties, groups=4, kept=2)),
        Case("ties/no groups", partial(_ties, groups=1, kept=1)),
        Case("bias/decides, all negative", _negative_bias),
        Case("extreme/logits of 200", _extreme),
    ]
    wide = partial(_random, rows=40, experts=256, groups=8, kept=4, chosen=8, hidden=7168)
    return [*grouped, *flat, *others, Case("V3.2/40 rows", wide, slow=True)]


def _call(
    x: Tensor,
    gate: Tensor,
    bias: Tensor,
    *,
    groups: int,
    kept: int,
    chosen: int,
    norm: bool = True,
) -> Call:
    return Call(
        args=(x, gate, bias),
        kwargs={
            "n_group": groups,
            "topk_group": kept,
            "top_k": chosen,
            "norm": norm,
            "scaling": 2.5,
        },
        outputs=lambda result: {"weights": result[0], "ids": result[1]},
        tolerance={"weights": close(1e-5, 1e-7), "ids": exact()},
    )


def _random(
    generator: torch.Generator,
    device: torch.device,
    *,
    rows: int,
    experts: int,
    groups: int,
    kept: int,
    chosen: int,
    hidden: int = 48,
    norm: bool = True,
    source: str = "bf16",
) -> Call:
    gate = randn(generator, experts, hidden, device=device) / hidden**0.5
    bias = 0.3 * randn(generator, experts, device=device)
    x = torch.zeros(0, hidden, dtype=SOURCES[source], device=device)
    while x.shape[0] < rows:
        drawn = randn(generator, rows + 8, hidden, device=device, dtype=SOURCES[source])
        x = torch.cat([x, drawn[is_clear(drawn, gate, bias, groups=groups, kept=kept, chosen=chosen)]])
    wide = torch.full((rows, hidden + 16), torch.nan, dtype=x.dtype, device=device)
    wide[:, 8 : 8 + hidden] = x[:rows]
    return _call(wide[:, 8 : 8 + hidden], gate, bias, groups=groups, kept=kept, chosen=chosen, norm=norm)


def is_clear(x: Tensor, gate: Tensor, bias: Tensor, *, groups: int, kept: int, chosen: int) -> Tensor:
    """Rows whose ranked scores, of groups and of experts, are MARGIN apart in float64."""
    biased = (x.double() @ gate.double().T).sigmoid() + bias.double()
    grouped = biased.unflatten(1, (groups, -1))
    clear = torch.ones(x.shape[0], dtype=torch.bool, device=x.device)
    if groups > 1:
        totals = grouped.topk(2).values.sum(-1)
        ranked = totals.sort(descending=True)
        clear &= (ranked.values[:, :-1] - ranked.values[:, 1:] > MARGIN).all(1)
        out = torch.ones_like(totals, dtype=torch.bool).scatter(1, ranked.indices[:, :kept], False)
        biased = grouped.masked_fill(out[..., None], -torch.inf).flatten(1)
    best = biased.sort(descending=True).values[:, : chosen + 1]
    return clear & (best[:, :-1] - best[:, 1:] > MARGIN).all(1)


def _ties(generator: torch.Generator, device: torch.device, *, groups: int, kept: int) -> Call:
    """A zero gate makes every score 0.5; the bias has three values, so that most ranks are ties."""
    x = randn(generator, 63, 40, device=device)
    bias = torch.randint(-1, 2, (24,), generator=generator).float().to(device)
    gate = torch.zeros(24, 40, device=device)
    return _call(x, gate, bias, groups=groups, kept=kept, chosen=5)


def _negative_bias(generator: torch.Generator, device: torch.device) -> Call:
    """Every biased score is negative: a group masked with 0 instead of −inf would win."""
    gate = randn(generator, 16, 40, device=device) / 40**0.5
    bias = -3.0 - 0.5 * torch.randperm(16, generator=generator).to(device) * 4.0
    x = randn(generator, 65, 40, device=device)
    return _call(x, gate, bias, groups=4, kept=1, chosen=4)


def _extreme(generator: torch.Generator, device: torch.device) -> Call:
    """Logits of ±200 and 0: sigmoids of 1 and of 1e-87, which is 0 in float32, and weights that are all 0."""
    x = torch.tensor([[200.0], [-200.0], [0.0], [40.0]], device=device)
    gate = torch.ones(8, 1, device=device)
    bias = torch.randperm(8, generator=generator).float().to(device)
    return _call(x, gate, bias, groups=2, kept=1, chosen=3)
