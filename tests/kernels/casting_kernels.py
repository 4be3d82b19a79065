"""Kernels that apply the cast helpers, for a child process under the interpreter."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from paths.kernels import quant
from paths.kernels.casting import (
    block_amax,
    cast_to,
    dot,
    e4m3_to_f32,
    reciprocal,
    to_bf16,
    to_e4m3,
    ue8m0_scale,
)


@triton.jit
def casts_kernel(x, bf16, e4m3, back, scale, inverse, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    narrow = to_e4m3(value)
    tl.store(bf16 + i, to_bf16(value), mask=i < n)
    tl.store(e4m3 + i, narrow, mask=i < n)
    tl.store(back + i, e4m3_to_f32(narrow), mask=i < n)
    tl.store(scale + i, ue8m0_scale(tl.abs(value)), mask=i < n)
    tl.store(inverse + i, reciprocal(ue8m0_scale(tl.abs(value))), mask=i < n)


@triton.jit
def dot_kernel(a, b, out, DTYPE: tl.constexpr):
    i, j = tl.arange(0, 32)[:, None], tl.arange(0, 32)[None, :]
    x, y = cast_to(tl.load(a + i * 32 + j), DTYPE), cast_to(tl.load(b + i * 32 + j), DTYPE)
    tl.store(out + i * 32 + j, dot(x, y, tl.full((32, 32), 1.0, tl.float32)))


@triton.jit
def amax_kernel(x, out):
    i, j = tl.arange(0, 4)[:, None], tl.arange(0, 8)[None, :]
    tl.store(out + tl.arange(0, 4), block_amax(tl.load(x + i * 8 + j), 1))


def samples() -> torch.Tensor:
    """Every bf16 value, ties between its neighbours and those of e4m3, and random bit patterns."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.arange(1 << 16, dtype=torch.int64)
    random = torch.randint(0, 1 << 32, (1 << 19,), generator=generator)
    half_bf16 = (patterns << 16) | 0x8000
    codes = torch.arange(0x7E, dtype=torch.uint8)
    grid = codes.view(torch.float8_e4m3fn).float()
    between = (grid + torch.cat([grid[1:], grid[-1:]])) / 2
    near = torch.cat([between, between.nextafter(torch.tensor(0.0)), between.nextafter(torch.tensor(1e9))])
    powers = 2.0 ** torch.arange(-30, 30) * 448
    raw = torch.cat([patterns << 16, half_bf16, half_bf16 + 1, half_bf16 - 1, random])
    raw = torch.where(raw >= 1 << 31, raw - (1 << 32), raw).int().view(torch.float32)
    return torch.cat([raw, near, -near, powers, powers.nextafter(torch.tensor(1e30)), grid, -grid])


def assert_same_bits(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal bytes, signed zeros included; a NaN equals any NaN."""
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[expected.element_size()]
    nan = expected.float().isnan()
    assert torch.equal(actual.float().isnan(), nan)
    assert torch.equal(actual.view(integers)[~nan], expected.view(integers)[~nan])


def check_casts() -> None:
    x = samples()
    n = x.numel()
    bf16, e4m3 = torch.zeros(n, dtype=torch.bfloat16), torch.zeros(n, dtype=torch.float8_e4m3fn)
    back, scale, inverse = (torch.zeros(n) for _ in range(3))
    casts_kernel[(triton.cdiv(n, 65536),)](x, bf16, e4m3, back, scale, inverse, n, BLOCK=65536)
    assert_same_bits(bf16, x.bfloat16())
    assert_same_bits(e4m3, quant.to_e4m3(x))
    assert_same_bits(back, e4m3.float())
    assert_same_bits(scale, quant.ue8m0_scale(x.abs()))
    assert_same_bits(inverse, 1 / quant.ue8m0_scale(x.abs()))


def check_dots() -> None:
    generator = torch.Generator().manual_seed(1)
    a, b = torch.randn(32, 32, generator=generator), torch.randn(32, 32, generator=generator)
    for dtype, stored in (
        (tl.float32, torch.float32),
        (tl.bfloat16, torch.bfloat16),
        (tl.float8e4nv, torch.float8_e4m3fn),
    ):
        out = torch.zeros(32, 32)
        dot_kernel[(1,)](a, b, out, DTYPE=dtype)
        expected = 1 + a.to(stored).float() @ b.to(stored).float()
        torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)


def check_amax() -> None:
    x = torch.arange(-16.0, 16.0).reshape(4, 8)
    x[1, 3], x[2, 0] = float("nan"), float("inf")
    out = torch.zeros(4)
    amax_kernel[(1,)](x, out)
    assert_same_bits(out, x.abs().amax(-1))
