"""What the engine's own counters say about a load. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.measurement import Cut, Measurement
from harness.request_times import RequestTimes
from harness.window import Window


def prefix_hit_rate(measurement: Measurement, times: RequestTimes) -> tuple[float | None, int]:
    """Prompt tokens served from a prefix cache by prompt tokens read, around the window, and the latter."""
    start, end = measurement.window_start, measurement.window_end
    if start is None or end is None:
        return None, 0
    inside = Window(start.time_ns, end.time_ns).holds(times.first_ns)
    prompts = int(measurement.requests.prompt_tokens[inside].sum())
    hits = end.counters.prefix_cache_hits - start.counters.prefix_cache_hits
    return (hits / prompts if prompts else None), prompts


def cpu_seconds_per_token(measurement: Measurement) -> tuple[float | None, int]:
    """CPU time of the engine per token that arrived between the window's snapshots, and the tokens."""
    start, end = measurement.window_start, measurement.window_end
    if start is None or end is None:
        return None, 0
    inside = Window(start.time_ns, end.time_ns).holds(measurement.events.time_ns)
    tokens = int(measurement.events.tokens[inside].sum())
    if start.counters.cpu_seconds is None or end.counters.cpu_seconds is None:
        return None, 0
    spent = end.counters.cpu_seconds - start.counters.cpu_seconds
    return (spent / tokens if tokens else None), tokens


def cpu_wait_share(measurement: Measurement) -> float | None:
    """Share of the window in which a thread of the engine was ready to run and had no processor.

    The sum over its threads by the length of the window; None where the engine or its kernel does not tell.
    """
    start, end = measurement.window_start, measurement.window_end
    if start is None or end is None or end.time_ns <= start.time_ns:
        return None
    before, after = start.counters.cpu_wait_seconds, end.counters.cpu_wait_seconds
    if before is None or after is None:
        return None
    return (after - before) / ((end.time_ns - start.time_ns) / 1e9)


def nan_logit_rows(measurement: Measurement) -> int | None:
    """Rows sampled from logits with a NaN, over the whole load."""
    if measurement.before is None or measurement.after is None:
        return None
    return measurement.after.counters.nan_logit_rows - measurement.before.counters.nan_logit_rows


def dsa_active_token_frac(measurement: Measurement) -> tuple[float | None, int]:
    """Share of decode tokens in the window whose context is longer than index_topk, and the tokens.

    Below that length the selection takes every key, so a low share means that sparsity was not exercised.
    """
    start, end = measurement.window_start, measurement.window_end
    if start is None or end is None:
        return None, 0
    tokens = end.counters.decode_tokens - start.counters.decode_tokens
    sparse = end.counters.decode_tokens_sparse - start.counters.decode_tokens_sparse
    return (sparse / tokens if tokens else None), tokens


def token_accounts(measurement: Measurement, times: RequestTimes) -> tuple[int, int] | str:
    """Output tokens as the client read them and as the engine counted them, over the whole load.

    Both snapshots are taken while the engine is idle, so the two must agree to the token. Returns the reason
    where they need not.
    """
    before, after = measurement.before, measurement.after
    if before is None or after is None:
        return "no engine counters around the load"
    if np.any(measurement.requests.cut != Cut.NONE):
        return "requests were given up: the engine may have made tokens that nobody read"
    counted = after.counters.output_tokens - before.counters.output_tokens
    return int(times.output_tokens.sum()), counted


_TOO_LARGE = "above the largest size"


def replayed_steps(counted: Mapping[str, Any], *, uniform_only: bool) -> tuple[int, int]:
    """Steps that replayed a graph, and those that one could have run: all but the ones too large for any.

    counted: differences of `Counters`. Its `graph_misses` are reason → steps below the configured mode; a
    reason says what each mode lacked, FULL first; where it does not end with PIECEWISE, the step was replayed
    as that. uniform_only: nothing is captured for steps in which requests have different numbers of tokens;
    these run eagerly on purpose, without a reason, and are left out.
    """
    steps, misses = counted["steps"], counted["graph_misses"]
    replayed = steps.get("FULL", 0) + steps.get("PIECEWISE", 0)
    too_large = sum(number for reason, number in misses.items() if _fits_no_graph(reason))
    candidates = counted["uniform_steps"] if uniform_only else sum(steps.values())
    return replayed, candidates - too_large


def _fits_no_graph(reason: str) -> bool:
    full, _, last = reason.rpartition("; ")
    if not last.startswith("PIECEWISE"):
        return False
    return _TOO_LARGE in last or ("not configured" in last and _TOO_LARGE in full)
