"""moe_route in Triton: router logits in IEEE float32, split over the hidden width, then the selection."""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from paths.kernels.casting import dot
from paths.kernels.compile_specs import META, CompileSpec, of_cases, traced
from paths.kernels.launching import TileConfig, launch
from paths.kernels.moe_route.reference import WEIGHT_SUM_FLOOR
from paths.kernels.tensors import check_tensor

OP = "moe_route"
FLOATS = (torch.float32, torch.bfloat16)
SELECT_TILES = TileConfig(num_warps=1, num_stages=1)  # 256 scores a token
# Tokens up to which a row holds → tiles of the logits, and hidden values per split: few tokens need many
# splits to occupy the device, many tokens need none.
LOGIT_TILES = (
    (64, TileConfig(num_warps=4, num_stages=3, tiles={"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 32}), 512),
    (1024, TileConfig(num_warps=4, num_stages=3, tiles={"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32}), 2048),
    (None, TileConfig(num_warps=8, num_stages=3, tiles={"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}), 8192),
)
NEVER = tl.constexpr(-(2**31))  # below the key of every score, that of −inf too


@triton.jit
def moe_route_logits_kernel(
    x,
    gate,
    partial,
    tokens,
    x_stride,
    WIDTH: tl.constexpr,
    EXPERTS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """BLOCK_M tokens × BLOCK_N experts over CHUNK hidden values per program → partial float32 `[S, T, E]`."""
    token = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    expert = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    live_token, live_expert = token < tokens, expert < EXPERTS
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(split * CHUNK, min(split * CHUNK + CHUNK, WIDTH), BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        inside = k < WIDTH
        rows = tl.load(
            x + token[:, None] * x_stride + k[None, :], mask=live_token[:, None] & inside[None, :], other=0.0
        ).to(tl.float32)
        columns = tl.load(
            gate + expert[None, :] * WIDTH + k[:, None],
            mask=live_expert[None, :] & inside[:, None],
            other=0.0,
        )
        acc = dot(rows, columns, acc)
    # `token` is 64 bits wide, and so is what it is added to
    out = partial + (split * tokens + token[:, None]) * EXPERTS + expert[None, :]
    tl.store(out, acc, mask=live_token[:, None] & live_expert[None, :])


@triton.jit
def order_key(x):
    """int32 that orders as the float32 does: NaN as −inf, −0 as +0."""
    x = tl.where(x == x, x + 0.0, float("-inf"))
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def moe_route_select_kernel(
    partial,
    bias,
    weights,
    ids,
    tokens,
    scaling,
    weight_floor,
    SPLITS: tl.constexpr,
    EXPERTS: tl.constexpr,
    GROUPS: tl.constexpr,
    GROUPS_WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
    SIZE_WIDTH: tl.constexpr,
    KEPT: tl.constexpr,
    CHOSEN: tl.constexpr,
    CHOSEN_WIDTH: tl.constexpr,
    SHARED: tl.constexpr,
    NORM: tl.constexpr,
):
    """One token per program: scores `[groups, size]`, ids and weights of CHOSEN experts and SHARED ones."""
    token = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, GROUPS_WIDTH)
    member = tl.arange(0, SIZE_WIDTH)
    expert = group[:, None] * SIZE + member[None, :]
    real = (group < GROUPS)[:, None] & (member < SIZE)[None, :]
    logits = tl.zeros((GROUPS_WIDTH, SIZE_WIDTH), tl.float32)
    for split in tl.static_range(SPLITS):
        logits += tl.load(partial + (split * tokens + token) * EXPERTS + expert, mask=real, other=0.0)
    scores = tl.sigmoid(logits)
    biased = scores + tl.load(bias + expert, mask=real, other=0.0)
    key = tl.where(real, order_key(biased), NEVER)
    if GROUPS > 1:
        # each group's two best, the second without the first one's place
        best = tl.max(key, axis=1)
        place = tl.min(tl.where(key == best[:, None], member[None, :], SIZE_WIDTH), axis=1)
        first = member[None, :] == place[:, None]
        second = tl.max(tl.where(first, NEVER, key), axis=1)
        top = tl.sum(tl.where(first, tl.where(real, biased, 0.0), 0.0), axis=1)
        value = tl.where(second < 0, second ^ 0x7FFFFFFF, second).to(tl.float32, bitcast=True)
        total = tl.where(group < GROUPS, order_key(top + value), NEVER)
        # a group stays if fewer than KEPT others are better, or equal and before it
        column = tl.reshape(total, (1, GROUPS_WIDTH))
        row = tl.reshape(total, (GROUPS_WIDTH, 1))
        before = tl.reshape(group, (1, GROUPS_WIDTH)) < tl.reshape(group, (GROUPS_WIDTH, 1))
        rank = tl.sum(((column > row) | ((column == row) & before)).to(tl.int32), axis=1)
        # out at −inf, not at 0: kept scores may be negative
        out = tl.full((GROUPS_WIDTH, SIZE_WIDTH), float("-inf"), tl.float32)
        key = tl.where((rank < KEPT)[:, None], key, tl.where(real, order_key(out), NEVER))
    slot = tl.arange(0, CHOSEN_WIDTH)
    picked = tl.zeros((CHOSEN_WIDTH,), tl.float32)
    chosen = tl.zeros((CHOSEN_WIDTH,), tl.int32)
    for j in tl.static_range(CHOSEN):
        best = tl.max(tl.max(key, axis=1), axis=0)
        winner = tl.min(tl.min(tl.where(key == best, expert, EXPERTS), axis=1), axis=0)
        hit = expert == winner
        score = tl.sum(tl.sum(tl.where(hit & real, scores, 0.0), axis=1), axis=0)
        key = tl.where(hit & real, NEVER, key)
        picked = tl.where(slot == j, score, picked)
        chosen = tl.where(slot == j, winner, chosen)
    if NORM:
        picked = tl.div_rn(picked, tl.maximum(tl.sum(picked), weight_floor))
    picked = tl.where(slot < CHOSEN, picked * scaling, 1.0)
    chosen = tl.where(slot < CHOSEN, chosen, EXPERTS + slot - CHOSEN)
    row_out = token * (CHOSEN + SHARED) + slot
    tl.store(weights + row_out, picked, mask=slot < CHOSEN + SHARED)
    tl.store(ids + row_out, chosen, mask=slot < CHOSEN + SHARED)


def moe_route(
    x: Tensor,
    gate: Tensor,
    bias: Tensor,
    *,
    n_group: int,
    topk_group: int,
    top_k: int,
    norm: bool,
    scaling: float,
) -> tuple[Tensor, Tensor]:
    """x `[T, D]`, gate float32 `[E, D]`, bias float32 `[E]` → weights float32, ids int32 `[T, top_k]`.

    Few tokens are memory-bound: the gate's 4 × E × D bytes are read once, x once per BLOCK_N experts, and
    S × T × E × 4 bytes of partial logits are written and read once. A row with NaN chooses in-range ids.
    Raises ValueError.
    """
    return route_with_shared(
        x,
        gate,
        bias,
        n_group=n_group,
        topk_group=topk_group,
        top_k=top_k,
        norm=norm,
        scaling=scaling,
        shared=0,
    )


def route_with_shared(
    x: Tensor,
    gate: Tensor,
    bias: Tensor,
    *,
    n_group: int,
    topk_group: int,
    top_k: int,
    norm: bool,
    scaling: float,
    shared: int,
) -> tuple[Tensor, Tensor]:
    """moe_route, and behind each row's choices the experts E .. E + shared with weight 1."""
    _check(x, gate, bias, n_group=n_group, topk_group=topk_group, top_k=top_k)
    tokens, width = x.shape
    experts = gate.shape[0]
    tiles, chunk = next(
        (tiles, chunk) for limit, tiles, chunk in LOGIT_TILES if limit is None or tokens <= limit
    )
    splits = triton.cdiv(width, chunk)
    weights = x.new_empty(tokens, top_k + shared, dtype=torch.float32)
    ids = x.new_empty(tokens, top_k + shared, dtype=torch.int32)
    partial_logits = x.new_empty(splits, tokens, experts, dtype=torch.float32)
    blocks = (triton.cdiv(tokens, tiles.tiles["BLOCK_M"]), triton.cdiv(experts, tiles.tiles["BLOCK_N"]))
    launch(
        moe_route_logits_kernel,
        (*blocks, splits),
        x,
        gate,
        partial_logits,
        tokens,
        x.stride(0),
        config=tiles,
        WIDTH=width,
        EXPERTS=experts,
        CHUNK=chunk,
    )
    launch(
        moe_route_select_kernel,
        (tokens,),
        partial_logits,
        bias,
        weights,
        ids,
        tokens,
        float(scaling),
        WEIGHT_SUM_FLOOR,
        config=SELECT_TILES,
        SPLITS=splits,
        EXPERTS=experts,
        GROUPS=n_group,
        GROUPS_WIDTH=triton.next_power_of_2(n_group),
        SIZE=experts // n_group,
        SIZE_WIDTH=triton.next_power_of_2(experts // n_group),
        KEPT=topk_group,
        CHOSEN=top_k,
        CHOSEN_WIDTH=triton.next_power_of_2(top_k + shared),
        SHARED=shared,
        NORM=norm,
    )
    return weights, ids


def _check(x: Tensor, gate: Tensor, bias: Tensor, *, n_group: int, topk_group: int, top_k: int) -> None:
    """Raises ValueError."""
    check_tensor(OP, "x", x, dtype=FLOATS, shape=(None, None), contiguous=False)
    check_tensor(OP, "gate", gate, dtype=torch.float32, shape=(None, x.shape[1]), contiguous=True)
    experts = gate.shape[0]
    check_tensor(OP, "bias", bias, dtype=torch.float32, shape=(experts,))
    if n_group < 1 or experts % n_group or (n_group > 1 and experts // n_group < 2):
        raise ValueError(
            f"{OP}: n_group is {n_group}, allowed are divisors of {experts} with groups of 2 or more"
        )
    if not 1 <= topk_group <= n_group:
        raise ValueError(f"{OP}: topk_group is {topk_group}, allowed are 1 to {n_group}")
    if not 1 <= top_k <= topk_group * (experts // n_group):
        raise ValueError(
            f"{OP}: top_k is {top_k}, allowed are 1 to {topk_group * (experts // n_group)}, "
            "the experts of the kept groups"
        )


def compile_specs() -> list[CompileSpec]:
    """V3.2 keeps 4 of 8 groups, GLM-5.2 has one; 8 of 256 experts, with and without a shared one."""
    from paths.kernels.moe_route.cases import check_cases

    specs = []
    for model, hidden, groups, kept in (("v32", 7168, 8, 4), ("glm52", 6144, 1, 1)):
        for tokens in (64, 1024, 8192):
            for shared in (0, 1):
                call = partial(
                    route_with_shared,
                    torch.empty(tokens, hidden, dtype=torch.bfloat16, device=META),
                    torch.empty(256, hidden, device=META),
                    torch.empty(256, device=META),
                    n_group=groups,
                    topk_group=kept,
                    top_k=8,
                    norm=True,
                    scaling=2.5,
                    shared=shared,
                )
                specs += traced(OP, f"{model}, {tokens} rows, {shared} shared", call)
    return specs + of_cases(OP, moe_route, check_cases())
