"""Times the Triton kernels on a GPU against the roofline; a dry run shows arithmetic and launches only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from rich.table import Table

from paths.kernels.compile_specs import META
from paths.kernels.launching import tracing
from paths.kernels.tools.catalog import find_ops
from paths.kernels.tools.roofline import Peak, speed
from paths.kernels.tools.workloads import Workload

WARM_UP, REPEATS = 10, 50


@dataclass(frozen=True)
class Timing:
    """Median of REPEATS runs, each with a cold L2 cache."""

    workload: Workload
    seconds: float


def launcher_of(workload: Workload) -> Callable[..., object]:
    return find_ops([workload.op])[0].function("triton", workload.function)


def measure(workload: Workload, device: torch.device) -> Timing:
    """Time one workload. Raises whatever its kernel raises."""
    arguments, keywords = workload.arguments(device)
    function = launcher_of(workload)
    flush = torch.empty(1 << 28, dtype=torch.int8, device=device)  # larger than any L2
    for _ in range(WARM_UP):
        function(*arguments, **keywords)
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(REPEATS)]
    for begin, end in marks:
        flush.zero_()
        begin.record()
        function(*arguments, **keywords)
        end.record()
    torch.cuda.synchronize(device)
    times = sorted(begin.elapsed_time(end) / 1e3 for begin, end in marks)
    return Timing(workload, times[len(times) // 2])


def trace(workload: Workload) -> list[str]:
    """Names of the kernels that a workload launches, found without running anything."""
    arguments, keywords = workload.arguments(META)
    with tracing() as launches:
        launcher_of(workload)(*arguments, **keywords)
    return [one.kernel.fn.__name__ for one in launches]


def timing_table(timings: Sequence[Timing], peak: Peak | None) -> Table:
    table = Table("op", "workload", "time µs", "GB/s", "TFLOP/s", "roofline µs", "bound by", "of roofline")
    for timing in timings:
        cost = timing.workload.cost
        result = speed(cost, timing.seconds, peak)
        limit = ("", "") if peak is None else (f"{cost.least_seconds(peak) * 1e6:.1f}", cost.bound(peak))
        table.add_row(
            timing.workload.op,
            timing.workload.label,
            f"{result.seconds * 1e6:.1f}",
            f"{result.gigabytes_per_second:.0f}",
            f"{result.teraflops:.1f}",
            *limit,
            "" if result.share is None else f"{result.share:.0%}",
        )
    return table


def plan_table(workloads: Sequence[Workload], peak: Peak) -> Table:
    """What would be timed: megabytes, operations and the least time, and the kernels it launches."""
    table = Table("op", "workload", "MB", "GFLOP", "roofline µs", "bound by", "kernels")
    for workload in workloads:
        cost = workload.cost
        table.add_row(
            workload.op,
            workload.label,
            f"{cost.bytes / 1e6:.1f}",
            f"{cost.flops / 1e9:.1f}",
            f"{cost.least_seconds(peak) * 1e6:.1f}",
            cost.bound(peak),
            ", ".join(name.removesuffix("_kernel") for name in trace(workload)),
        )
    return table
