"""Casts, quantization and dot products that every Triton kernel goes through.

Triton's interpreter truncates float32 → bf16, mis-rounds float32 → e4m3 and takes the bits of bf16 operands
of `tl.dot` for numbers. There these helpers round to nearest even in integer arithmetic and widen operands
first; compiled, they are the hardware's own instructions.
"""

import triton
import triton.language as tl
from triton import knobs

INTERPRET = tl.constexpr(bool(knobs.runtime.interpret))  # of this process: fixed when triton is imported


@triton.jit
def to_bf16(x):
    """float32 → bf16, to nearest even; NaN stays NaN (payload not kept)."""
    if INTERPRET:
        bits = x.to(tl.uint32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
        return tl.where(is_nan, 0x7FC0, rounded).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        return x.to(tl.bfloat16)


@triton.jit
def to_e4m3(x):
    """float32 → e4m3, to nearest even, saturating at ±448; NaN stays NaN."""
    if INTERPRET:
        bits = x.to(tl.uint32, bitcast=True)
        sign = (bits >> 24) & 0x80
        magnitude = bits & 0x7FFFFFFF
        # 3 of 23 mantissa bits stay; the exponent bias goes from 127 to 7
        normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20).to(tl.int32) - (120 << 3)
        # below 2^-6 the step is 2^-9: adding 2^14 leaves the count of steps in the last mantissa bits
        steps = (magnitude.to(tl.float32, bitcast=True) + 16384.0).to(tl.uint32, bitcast=True) & 0xF
        code = tl.where(magnitude < 0x3C800000, steps.to(tl.int32), tl.minimum(normal, 0x7E))
        code = tl.where(magnitude > 0x7F800000, 0x7F, code)
        return (code.to(tl.uint32) | sign).to(tl.uint8).to(tl.float8e4nv, bitcast=True)
    else:
        return tl.clamp(x, -448.0, 448.0, propagate_nan=tl.PropagateNan.ALL).to(tl.float8e4nv)


@triton.jit
def cast_to(x, DTYPE: tl.constexpr):
    """Any float → DTYPE: float32, bf16, or e4m3 (saturating)."""
    if DTYPE == tl.bfloat16:
        return to_bf16(x.to(tl.float32))
    elif DTYPE == tl.float8e4nv:
        return to_e4m3(x.to(tl.float32))
    else:
        return x.to(tl.float32)


@triton.jit
def e4m3_to_f32(x):
    """e4m3 → float32, exact. Hardware without OCP e4m3 (gfx942) widens in software."""
    if INTERPRET:
        bits = x.to(tl.uint8, bitcast=True).to(tl.uint32)
        magnitude = bits & 0x7F
        normal = ((magnitude << 20) + (120 << 23)).to(tl.float32, bitcast=True)
        value = tl.where(magnitude < 8, magnitude.to(tl.float32) * 0.001953125, normal)  # steps of 2^-9
        value = tl.where(magnitude == 0x7F, float("nan"), value)
        return tl.where((bits & 0x80) != 0, -value, value)
    else:
        return x.to(tl.float32)


@triton.jit
def dot(a, b, acc):
    """acc + a · b in float32; a `[M, K]`, b `[K, N]` of one dtype: float32 (IEEE), bf16 or e4m3."""
    if INTERPRET:
        return acc + tl.dot(_widen(a), _widen(b), input_precision="ieee")
    else:
        return tl.dot(a, b, acc, input_precision="ieee")


@triton.jit
def _widen(x):
    if x.dtype == tl.float8e4nv:
        return e4m3_to_f32(x)
    else:
        return x.to(tl.float32)


@triton.jit
def block_amax(x, AXIS: tl.constexpr):
    """Largest |x| along AXIS; NaN where there is one, which `tl.max` alone would drop."""
    is_nan = tl.max((x != x).to(tl.int32), axis=AXIS)
    return tl.where(is_nan != 0, float("nan"), tl.max(tl.abs(x), axis=AXIS))


@triton.jit
def ue8m0_scale(amax):
    """Smallest power of two ≥ max(amax, 1e-4) / 448, by the exponent bits; infinite where amax is NaN or inf.

    The division must round correctly: an ulp too much just above a power of two doubles the scale.
    """
    floored = tl.maximum(amax, 1e-4, propagate_nan=tl.PropagateNan.ALL)
    bits = tl.div_rn(floored, 448.0).to(tl.int32, bitcast=True)
    exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0).to(tl.int32)
    return (tl.minimum(exponent, 255) << 23).to(tl.float32, bitcast=True)


@triton.jit
def reciprocal(scale):
    """1 / scale of a power of two, exact: multiply by it before `to_e4m3`. 0 for an infinite scale."""
    return tl.div_rn(1.0, scale)
