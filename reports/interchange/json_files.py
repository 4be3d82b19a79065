"""Result files of `vllm bench serve`, AIPerf and GuideLLM."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.errors import one_line
from paths.api import UserError
from reports.interchange.aliases import (
    AIPERF_METRICS,
    GUIDELLM_RATES,
    GUIDELLM_TIMES,
    IDENTITY,
    VLLM_METRICS,
)
from reports.interchange.imported import Imported, ImportedRow, sorted_out

PERCENTILES = {"mean": "mean", "median": "p50", "p90": "p90", "p99": "p99"}
MILLISECONDS = {"ms": 1.0, "s": 1000.0, "sec": 1000.0, "us": 1e-3, "ns": 1e-6}
VLLM_IDENTITY = (
    "model_id",
    "max_concurrency",
    "request_rate",
    "tensor_parallel_size",
    "random_input_len",
    "random_output_len",
)


def read_json(path: Path) -> Imported:
    """The tool is recognised by what the file holds. Raises UserError."""
    documents = _documents(path)
    first = documents[0]
    if isinstance(first.get("benchmarks"), list):
        rows = [_guidellm(one) for document in documents for one in document["benchmarks"]]
        tool = "guidellm"
    elif isinstance(first.get("time_to_first_token") or first.get("request_throughput"), dict):
        rows, tool = [_aiperf(path, document) for document in documents], "aiperf"
    elif first.keys() & VLLM_METRICS.keys():
        rows, tool = [_vllm(document) for document in documents], "vllm_bench"
    else:
        raise UserError(
            f"file={path}: neither of vllm bench serve, AIPerf nor GuideLLM; known keys of these are"
            " request_throughput, time_to_first_token, benchmarks"
        )
    return Imported(tool=tool, rows=rows)


def _documents(path: Path) -> list[dict[str, Any]]:
    """One JSON object, a list of them, or one per line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"file={path}: cannot be read ({one_line(error)})") from error
    try:
        found = json.loads(text)
    except ValueError:
        found = list(_lines(path, text))
    documents = found if isinstance(found, list) else [found]
    if not documents or not all(isinstance(one, dict) for one in documents):
        raise UserError(f"file={path}: holds no JSON object")
    return documents


def _lines(path: Path, text: str) -> Iterator[Any]:
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise UserError(
                    f"file={path}, line {number}: not valid JSON ({error}); correct the line, or remove it"
                ) from error


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _vllm(document: Mapping[str, Any]) -> ImportedRow:
    numbers = {ours: _float(document[theirs]) for theirs, ours in VLLM_METRICS.items() if theirs in document}
    values, absent = sorted_out(numbers)
    identity = {
        IDENTITY.get(key, key): document.get(key) for key in VLLM_IDENTITY if document.get(key) is not None
    }
    return ImportedRow(
        identity=identity, values=values, absent=absent, requests=int(document.get("completed") or 0)
    )


def _aiperf(path: Path, document: Mapping[str, Any]) -> ImportedRow:
    numbers: dict[str, float | None] = {}
    for (theirs, statistic), ours in AIPERF_METRICS.items():
        block = document.get(theirs)
        if not isinstance(block, dict) or statistic not in block:
            continue
        value, unit = _float(block[statistic]), str(block.get("unit"))
        if ours.endswith("_ms"):
            if unit not in MILLISECONDS:
                raise UserError(f"file={path}: {theirs} has unit {unit}; known: {', '.join(MILLISECONDS)}")
            value = None if value is None else value * MILLISECONDS[unit]
        numbers[ours] = value
    values, absent = sorted_out(numbers)
    identity = {
        "model": _first(document.get("input_config"), "model_names", "model", "models"),
        "concurrency": _first(document.get("input_config"), "concurrency"),
        "request_rate": _first(document.get("input_config"), "request_rate"),
    }
    count = document.get("request_count")
    requests = _float(count.get("avg") if isinstance(count, dict) else count)
    return ImportedRow(identity=_set(identity), values=values, absent=absent, requests=int(requests or 0))


def _guidellm(benchmark: Mapping[str, Any]) -> ImportedRow:
    metrics = benchmark.get("metrics") or {}
    numbers: dict[str, float | None] = {}
    for theirs, (stem, factor) in GUIDELLM_TIMES.items():
        block = (metrics.get(theirs) or {}).get("successful") or {}
        known = {**block, **(block.get("percentiles") or {})}
        for name, what in PERCENTILES.items():
            if name in known:
                value = _float(known[name])
                numbers[f"{stem}_{what}_ms"] = None if value is None else value * factor
    for theirs, ours in GUIDELLM_RATES.items():
        block = (metrics.get(theirs) or {}).get("successful") or {}
        if "mean" in block:
            numbers[ours] = _float(block["mean"])
    values, absent = sorted_out(numbers)
    identity = {
        "model": _first(benchmark, "model"),
        "strategy": _first(benchmark, "type_"),
        "concurrency": _first(benchmark, "streams", "max_concurrency"),
        "request_rate": _first(benchmark, "rate"),
    }
    total = _first(benchmark.get("request_totals") or benchmark.get("run_stats"), "successful")
    return ImportedRow(
        identity=_set(identity), values=values, absent=absent, requests=int(_float(total) or 0)
    )


def _first(node: Any, *names: str) -> Any:
    """The first scalar under one of `names`, level by level; a list of one counts as its item."""
    level = [node]
    while level:
        below = []
        for one in level:
            if isinstance(one, dict):
                for name in names:
                    value = one.get(name)
                    if isinstance(value, list) and len(value) == 1:
                        value = value[0]
                    if isinstance(value, str | int | float) and not isinstance(value, bool):
                        return value
                below += [value for key, value in sorted(one.items()) if key != "metrics"]
        level = below
    return None


def _set(identity: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in identity.items() if value is not None}
