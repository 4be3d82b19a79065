"""rope in Triton. A program rotates some heads of one token; pairs are split in registers, not in memory.

Bytes: x is read once and the output written once, 2 × T × H × R × size. A token's 4 × R bytes of cos and sin
are read by each of its programs, from L2 after the first.
"""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from paths.kernels.casting import cast_to
from paths.kernels.compile_specs import META, CompileSpec, of_cases, traced
from paths.kernels.launching import TileConfig, launch
from paths.kernels.tensors import check_tensor

OP = "rope"
FLOATS = (torch.float32, torch.bfloat16)
# most heads of a token → tiles; fuse off: float32 products are rounded as torch rounds them
TILES = (
    (1, TileConfig(num_warps=1, num_stages=1, tiles={"BLOCK_H": 1}, fuse=False)),
    (16, TileConfig(num_warps=2, num_stages=1, tiles={"BLOCK_H": 16}, fuse=False)),
    (None, TileConfig(num_warps=4, num_stages=1, tiles={"BLOCK_H": 32}, fuse=False)),
)


@triton.jit
def rope_kernel(
    x,
    cos,
    sin,
    positions,
    out,
    token_stride,
    head_stride,
    heads,
    HALF: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    pair = tl.arange(0, BLOCK_HALF)
    angle = tl.load(positions + token) * HALF + pair
    c = tl.load(cos + angle, mask=pair < HALF, other=1.0)[None, :]
    s = tl.load(sin + angle, mask=pair < HALF, other=0.0)[None, :]
    source = x + token * token_stride + head[:, None] * head_stride
    target = out + (token * heads + head[:, None]) * (2 * HALF)
    if INTERLEAVED:
        lane = tl.arange(0, 2 * BLOCK_HALF)[None, :]
        inside = (head < heads)[:, None] & (lane < 2 * HALF)
        both = tl.load(source + lane, mask=inside, other=0.0).to(tl.float32)
        first, second = tl.split(tl.reshape(both, (BLOCK_H, BLOCK_HALF, 2)))
        rotated = tl.join(first * c - second * s, first * s + second * c)
        rotated = tl.reshape(rotated, (BLOCK_H, 2 * BLOCK_HALF))
        tl.store(target + lane, cast_to(rotated, out.dtype.element_ty), mask=inside)
    else:
        lane = pair[None, :]
        inside = (head < heads)[:, None] & (lane < HALF)
        first = tl.load(source + lane, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(source + HALF + lane, mask=inside, other=0.0).to(tl.float32)
        tl.store(target + lane, cast_to(first * c - second * s, out.dtype.element_ty), mask=inside)
        tl.store(target + HALF + lane, cast_to(first * s + second * c, out.dtype.element_ty), mask=inside)


def rope(x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, *, interleaved: bool) -> Tensor:
    """x `[T, H, R]`, any strides but the last, tables float32 `[P, R / 2]`, positions int64 `[T]`.

    Returns contiguous `[T, H, R]`. Raises ValueError.
    """
    check_tensor(OP, "x", x, dtype=FLOATS, shape=(None, None, None), contiguous=False)
    tokens, heads, width = x.shape
    if width % 2 or not width:
        raise ValueError(f"{OP}: x has shape {tuple(x.shape)}, allowed is an even last dimension")
    for name, table in (("cos", cos), ("sin", sin)):
        check_tensor(OP, name, table, dtype=torch.float32, shape=(None, width // 2), contiguous=True)
    if cos.shape != sin.shape:
        raise ValueError(
            f"{OP}: sin has shape {tuple(sin.shape)}, allowed is that of cos, {tuple(cos.shape)}"
        )
    check_tensor(OP, "positions", positions, dtype=torch.int64, shape=(tokens,))
    out = torch.empty((tokens, heads, width), dtype=x.dtype, device=x.device)
    tiles = next(tiles for most, tiles in TILES if most is None or heads <= most)
    launch(
        rope_kernel,
        (tokens, triton.cdiv(heads, tiles.tiles["BLOCK_H"])),
        x,
        cos,
        sin,
        positions,
        out,
        x.stride(0),
        x.stride(1),
        heads,
        config=tiles,
        HALF=width // 2,
        BLOCK_HALF=triton.next_power_of_2(width // 2),
        INTERLEAVED=interleaved,
    )
    return out


def compile_specs() -> list[CompileSpec]:
    """Queries, the one key head, and index queries, whose layout differs between the models."""
    from paths.kernels.rope.cases import check_cases

    specs = of_cases(OP, rope, check_cases())
    table = torch.empty(4096, 32, device=META)
    positions = torch.empty(8, dtype=torch.int64, device=META)
    for label, heads, stride, interleaved in (
        ("V3.2 query", 128, 192, True),
        ("V3.2 index query", 64, 128, False),
        ("GLM-5.2 query", 64, 256, True),
        ("GLM-5.2 index query", 32, 128, True),
        ("key", 1, 64, True),
    ):
        x = torch.empty(8, heads, stride, dtype=torch.bfloat16, device=META)[..., stride - 64 :]
        run = partial(rope, x, table, table, positions, interleaved=interleaved)
        specs += traced(OP, f"{label}, {heads} heads", run)
    return specs
