"""Rotations inside Triton kernels: RoPE of a vector's rotary part, and the Hadamard transform."""

import triton
import triton.language as tl


@triton.jit
def rope_angles(cos, sin, position, lane, live, ROPE: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Per lane of a rotary part of ROPE values: its partner's lane, cos, and sin with the partner's sign.

    rotated = value × cos + partner × signed sin. Lanes that are not `live` get the identity.
    """
    if INTERLEAVED:
        partner = lane ^ 1
        pair = lane // 2
        first = (lane % 2) == 0
    else:
        first = lane < ROPE // 2
        partner = tl.where(first, lane + ROPE // 2, lane - ROPE // 2)
        pair = tl.where(first, lane, lane - ROPE // 2)
    row = position.to(tl.int64) * (ROPE // 2)
    c = tl.load(cos + row + pair, mask=live, other=1.0)
    s = tl.load(sin + row + pair, mask=live, other=0.0)
    return partner, c, tl.where(first, -s, s)


@triton.jit
def hadamard_rows(x, ROWS: tl.constexpr, DIM: tl.constexpr):
    """x `[ROWS, DIM]` float32 times Sylvester's matrix over sqrt(DIM); DIM is a power of two.

    Butterflies of constant geometry: each stage combines neighbours and moves their bit to the top, so that
    after log2(DIM) stages every bit is back in its place.
    """
    for _ in tl.static_range(_log2(DIM)):
        low, high = tl.split(tl.reshape(x, (ROWS, DIM // 2, 2)))
        x = tl.reshape(tl.permute(tl.join(low + high, low - high), (0, 2, 1)), (ROWS, DIM))
    return x * (1.0 / tl.sqrt(DIM * 1.0))


@triton.constexpr_function
def _log2(size):
    return size.bit_length() - 1
