"""Does the client see what really happened? Drives the scripted path, whose token times are known.

    python benchmarks/client_overhead.py

Each row is one load of many concurrent streams through the worker process and the pipe, as in a real
run. The script says when each token appears, so the error of the mean TPOT is the harness's own. `events/s`
arrived; `events per CPU s` is what the client would sustain on a whole core. People read the table; the last
line of stdout is one JSON object. Exit code 1 when the error in the first row exceeds 1 %.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from harness.client.load import LoadSpec, run_load
from harness.launch import EngineProcess
from harness.measurement import Measurement
from harness.metrics import summarize
from harness.percentiles import percentile
from harness.request_times import NS_PER_MS
from harness.schedule import client_lag_ms
from harness.workload.random import RandomSource, allowed_ids
from paths.api import EngineConfig, ModelSource

ERROR_LIMIT_PCT = 1.0
VOCABULARY = 2048


@dataclass(frozen=True)
class Result:
    streams: int
    gap_ms: float  # what the script says, and so the true TPOT
    tokens_per_event: int
    tpot_ms: float | None
    error_pct: float | None
    ttft_p50_ms: float | None
    send_lag_p99_ms: float  # from a slot's end to its next request
    read_lag_p99_ms: float  # from the worker's stamp of an event to the client's
    longest_silence_ms: float  # between two frames; a machine that stalls spoils any measurement
    events_per_s: float
    events_per_cpu_s: float
    client_cpu_pct: float
    requests_ok: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=1024)
    parser.add_argument("--gaps-ms", default="100,50,20", help="the first one decides the exit code")
    parser.add_argument("--osl", type=int, default=64)
    parser.add_argument("--measure-s", type=float, default=5.0)
    arguments = parser.parse_args()
    results = [
        measure(arguments.streams, float(gap), tokens, osl=arguments.osl, measure_s=arguments.measure_s)
        for tokens in (1, 3)
        for gap in arguments.gaps_ms.split(",")
    ]
    print_table(results)
    error = results[0].error_pct
    passed = error is not None and abs(error) < ERROR_LIMIT_PCT
    summary = {
        "passed": passed,
        "error_limit_pct": ERROR_LIMIT_PCT,
        "max_events_per_s": max(result.events_per_s for result in results),
        "rows": [asdict(result) for result in results],
    }
    print(json.dumps(summary, separators=(",", ":"), allow_nan=False))
    return 0 if passed else 1


def measure(streams: int, gap_ms: float, tokens: int, *, osl: int, measure_s: float) -> Result:
    """One engine, one load. `tokens` per event: the true TPOT is gap / tokens."""
    config = EngineConfig(
        path="scripted",
        impl="paths.scripted:ScriptedPath",
        model=ModelSource(name="scripted", hf_config={"vocab_size": VOCABULARY}, checkpoint="dummy"),
        options={"first_ms": gap_ms, "gap_ms": gap_ms, "tokens_per_event": [1] + [tokens] * (osl - 1)},
    )
    spec = LoadSpec(
        concurrency=streams, request_rate=None, burstiness=1.0, num_prompts=None, measure_s=measure_s,
        warmup_s=1.0, timeout_s=120.0, osl=1 + tokens * (osl - 1), seed=0,
    )  # fmt: skip
    source = RandomSource(ids=allowed_ids(VOCABULARY, []), isl=32, osl=spec.osl, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        engine = EngineProcess(
            config,
            folder=Path(folder),
            cache_dir=Path(folder),
            parent_environment=os.environ,
            timeout_s=spec.timeout_s,
        )
        with engine:
            endpoint = engine.start(lambda text: None).endpoint
            wall, cpu = time.perf_counter(), time.process_time()
            measurement = run_load(endpoint, source, spec)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return digest(measurement, gap_ms, tokens, wall_s=wall, cpu_s=cpu)


def digest(measurement: Measurement, gap_ms: float, tokens: int, *, wall_s: float, cpu_s: float) -> Result:
    metrics, _, _ = summarize(measurement, gpus=1)
    tpot = metrics["tpot_mean_ms"].value
    events = measurement.events
    return Result(
        streams=measurement.spec.concurrency or 0,
        gap_ms=gap_ms,
        tokens_per_event=tokens,
        tpot_ms=tpot,
        error_pct=None if tpot is None else 100 * (tpot * tokens / gap_ms - 1),
        ttft_p50_ms=metrics["ttft_p50_ms"].value,
        send_lag_p99_ms=percentile(client_lag_ms(measurement), 99),
        read_lag_p99_ms=percentile((events.time_ns - events.emitted_ns) / NS_PER_MS, 99),
        longest_silence_ms=float(np.diff(events.time_ns).max()) / NS_PER_MS,
        events_per_s=len(events.time_ns) / wall_s,
        events_per_cpu_s=len(events.time_ns) / cpu_s,
        client_cpu_pct=100 * cpu_s / wall_s,
        requests_ok=int(metrics["requests_ok"].value or 0),
    )


def print_table(results: list[Result]) -> None:
    columns = ["streams", "gap ms", "tok/event", "TPOT ms", "error %", "TTFT p50 ms", "send lag p99 ms"]
    columns += ["read lag p99 ms", "silence ms", "events/s", "events per CPU s", "client CPU %", "requests"]
    rows = [[number(value) for value in asdict(result).values()] for result in results]
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    for row in [columns, *rows]:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 or float(value).is_integer() else f"{value:.4g}"


if __name__ == "__main__":
    sys.exit(main())
