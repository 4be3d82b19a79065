"""The least time that bytes and operations can take on a device, and what a measured time is of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Published peaks: memory in bytes/s, dense matrix products (no sparsity) in operations/s by operand."""

    memory: float
    bf16: float
    fp8: float | None  # None: bf16's, for operands are widened
    float32: float

    def compute(self, operand: str) -> float:
        value = {"bf16": self.bf16, "fp8": self.fp8 or self.bf16, "float32": self.float32}[operand]
        assert value is not None
        return value


# part of the device's name → peaks, more specific names first
PEAKS = {
    "H200": Peak(memory=4.8e12, bf16=989e12, fp8=1979e12, float32=67e12),
    "H100 PCIe": Peak(memory=2.0e12, bf16=756e12, fp8=1513e12, float32=51e12),
    "H100": Peak(memory=3.35e12, bf16=989e12, fp8=1979e12, float32=67e12),
    "B200": Peak(memory=8.0e12, bf16=2250e12, fp8=4500e12, float32=75e12),
    "L40S": Peak(memory=0.864e12, bf16=362e12, fp8=733e12, float32=91e12),
    "A100": Peak(memory=2.0e12, bf16=312e12, fp8=None, float32=19.5e12),
    "MI300X": Peak(memory=5.3e12, bf16=1307e12, fp8=None, float32=163e12),
}


def peak_of(device_name: str) -> Peak | None:
    """None for a device that the table does not know."""
    return next((peak for name, peak in PEAKS.items() if name in device_name), None)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What an op cannot avoid: bytes read or written once each, operations, and the dtype of its products."""

    bytes: float
    flops: float = 0.0
    operand: str = "bf16"

    def least_seconds(self, peak: Peak) -> float:
        return max(self.bytes / peak.memory, self.flops / peak.compute(self.operand))

    def bound(self, peak: Peak) -> str:
        """Which of the two is the limit."""
        by_memory = self.bytes / peak.memory >= self.flops / peak.compute(self.operand)
        return "memory" if by_memory else "compute"


@dataclass(frozen=True, kw_only=True)
class Speed:
    """A measured time in the units of the table; `share` of the roofline is None on an unknown device."""

    seconds: float
    gigabytes_per_second: float
    teraflops: float
    share: float | None


def speed(cost: Cost, seconds: float, peak: Peak | None) -> Speed:
    return Speed(
        seconds=seconds,
        gigabytes_per_second=cost.bytes / seconds / 1e9,
        teraflops=cost.flops / seconds / 1e12,
        share=None if peak is None else cost.least_seconds(peak) / seconds,
    )
