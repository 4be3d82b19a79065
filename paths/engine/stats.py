"""Resource usage of the engine's own process."""

from __future__ import annotations

import resource
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class ProcessUsage:
    """Since the process began. Named as in `paths.api.Counters`."""

    memory_high_water: int  # bytes
    cpu_seconds: float
    cpu_wait_seconds: float | None  # None where the kernel does not tell


def process_usage() -> ProcessUsage:
    """Of this process, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return ProcessUsage(
        memory_high_water=usage.ru_maxrss * 1024,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        cpu_wait_seconds=_cpu_wait_seconds(),
    )


def _cpu_wait_seconds() -> float | None:
    """Second field of each thread's schedstat: nanoseconds spent in the run queue."""
    try:
        waits = [int(file.read_text().split()[1]) for file in Path("/proc/self/task").glob("*/schedstat")]
    except (OSError, IndexError, ValueError):  # no such file here, or a thread ended meanwhile
        return None
    return sum(waits) / 1e9 if waits else None
