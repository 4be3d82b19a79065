"""Records → the formats of other tools: `vllm bench serve` JSON, PyTorch's benchmark records (v3), CSV. Pure.

Absent values are left out, never 0.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from harness.records import Record, RunInfo
from reports.compare.metric_table import METRICS

BENCHMARK = "dsa-path-harness"
FORMATS = ("vllm", "pytorch_v3", "csv")
# vLLM's rates count the whole run, its ITL is the gap between chunks
VLLM_KEYS = {
    "request_throughput": "req_per_s",
    "output_throughput": "out_tps_full",
    "total_token_throughput": "total_tps_full",
    **{
        f"{theirs}_{kind}_ms": f"{ours}_{what}_ms"
        for kind, ours in (("ttft", "ttft"), ("tpot", "tpot"), ("itl", "icl"), ("e2el", "e2e"))
        for theirs, what in (("mean", "mean"), ("median", "p50"), ("p90", "p90"), ("p99", "p99"))
        if f"{ours}_{what}_ms" in METRICS
    },
}
IDENTITY = (
    *("path", "model", "checkpoint", "dtype", "kv_dtype", "index_dtype", "gpus", "mtp", "workload"),
    *("isl", "osl", "request_rate", "concurrency"),
)
CELL = "cell_id"  # keeps cells apart that differ in what no column says


def export(run: RunInfo, records: Sequence[Record], form: str) -> dict[str, str]:
    """File name → content. Records without numbers are only in the CSV, as empty fields."""
    if form == "vllm":
        return {f"{_slug(one)}.json": _json(vllm(one)) for one in records if one.state.has_numbers}
    if form == "pytorch_v3":
        return {"benchmark_results.json": _json(pytorch_v3(run, records))}
    return {"records.csv": to_csv(records)}


def vllm(record: Record) -> dict[str, Any]:
    """One result file of `vllm bench serve`."""
    asked = record.requested
    values = {theirs: _value(record, ours) for theirs, ours in VLLM_KEYS.items()}
    whole = {
        "date": record.started_at,
        "backend": BENCHMARK,
        "label": record.label,
        "model_id": asked.get("model"),
        "tokenizer_id": asked.get("model"),
        "num_prompts": sum(record.statuses.values()) or None,
        "completed": record.statuses.get("ok", 0) if record.statuses else None,
        "request_rate": (asked["request_rate"] or "inf") if "request_rate" in asked else None,
        "max_concurrency": asked.get("concurrency"),
        "total_output_tokens": _value(record, "output_tokens"),
        "execution_path": asked.get("path"),
        "launch_id": record.launch_id,
    }
    return {key: value for key, value in {**whole, **values}.items() if value is not None}


def pytorch_v3(run: RunInfo, records: Sequence[Record]) -> list[dict[str, Any]]:
    """One entry per cell, arm and metric, with the values of all launches in `benchmark_values`."""
    groups: dict[tuple[str, str, str], list[tuple[Record, float]]] = {}
    for record in records:
        for name in record.metrics:
            value = _value(record, name)
            if value is not None:
                groups.setdefault((record.cell_id, record.arm_id, name), []).append((record, value))
    entries = []
    for (_, _, name), measured in groups.items():
        first = measured[0][0]
        asked, metric = first.requested, first.metrics[name]
        entries.append(
            {
                "benchmark": {
                    "name": BENCHMARK,
                    "mode": "inference",
                    "dtype": asked.get("dtype"),
                    "extra_info": {key: asked.get(key) for key in IDENTITY if asked.get(key) is not None},
                },
                "model": {"name": asked.get("model"), "type": "LLM", "backend": asked.get("path")},
                "metric": {
                    "name": name,
                    "unit": metric.unit,
                    "benchmark_values": [value for _, value in measured],
                    "extra_info": {"better": metric.better, "metric_def_version": first.metric_def_version},
                },
                "runners": [{"name": _machine(run.environment), "type": asked.get("hardware")}],
                "dependencies": {"harness": {"repo": BENCHMARK, "sha": run.environment.get("revision")}},
            }
        )
    return entries


def to_csv(records: Sequence[Record]) -> str:
    """One row per record, with our metric names: `cmd=import` reads it back."""
    names = [name for name in METRICS if any(name in record.metrics for record in records)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*IDENTITY, CELL, *names])
    for record in records:
        asked = record.requested
        row = ["" if asked.get(key) is None else asked[key] for key in IDENTITY]
        values = (_value(record, name) for name in names)
        writer.writerow([*row, record.cell_id, *("" if value is None else repr(value) for value in values)])
    return text.getvalue()


def _value(record: Record, name: str) -> float | None:
    metric = record.metrics.get(name)
    return None if metric is None else metric.value


def _machine(environment: Mapping[str, Any]) -> str:
    gpu = environment.get("gpu")
    return str(gpu["name"] if isinstance(gpu, dict) and "name" in gpu else environment.get("cpu"))


def _slug(record: Record) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", record.label).strip("-.")[:60]
    return f"{name or 'cell'}-{record.cell_id[:8]}-{re.sub(r'[^A-Za-z0-9._-]+', '-', record.launch_id)}"


def _json(content: Any) -> str:
    return json.dumps(content, indent=2, allow_nan=False) + "\n"
