"""Resource usage of the engine's own process."""

from __future__ import annotations

import resource


def process_usage() -> tuple[int, float]:
    """Peak resident bytes, and user + system seconds, of this process since it began."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_maxrss * 1024, usage.ru_utime + usage.ru_stime
