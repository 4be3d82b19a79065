"""What other tools call our metrics. Data; docs/import.md shows it as a table.

The same word is not always the same metric: vLLM's and SGLang's ITL is the gap between chunks (our ICL),
AIPerf's and GuideLLM's is the time per output token of a request (our TPOT), GuideLLM's own TPOT includes the
first token and is left out. Rates of these tools count the whole run with ramp-up and drain (our `_full`).
"""

from __future__ import annotations

_SHOWN = {"mean": "mean", "p50": "median", "p90": "p90", "p99": "p99"}


def _times(ours: str, theirs: str, shows: str = "mean p50 p90 p99") -> dict[str, str]:
    """`mean_ttft_ms`, `median_ttft_ms`, `p50_ttft_ms` … → `ttft_mean_ms`, `ttft_p50_ms` …"""
    found = {}
    for what in shows.split():
        found[f"{_SHOWN[what]}_{theirs}_ms"] = f"{ours}_{what}_ms"
        found[f"{what}_{theirs}_ms"] = f"{ours}_{what}_ms"
    return found


# columns of a CSV file, beside the names of our own metrics
CSV_METRICS = {
    "output_tok_s": "out_tps",
    "output_tps": "out_tps",
    "output_tok_s_per_gpu": "out_tps_per_gpu",
    "total_tok_s": "total_tps",
    "requests_per_s": "req_per_s",
    "output_throughput": "out_tps_full",
    "total_token_throughput": "total_tps_full",
    "acceptance_length": "al",
    **_times("tpot", "tpot"),
    **_times("ttft", "ttft"),
    **_times("e2e", "e2el"),
    **_times("e2e", "e2e"),
    **_times("icl", "itl", "p50 p99"),
}

# keys of `vllm bench serve` and of SGLang's bench_serving
VLLM_METRICS = {
    "output_throughput": "out_tps_full",
    "total_token_throughput": "total_tps_full",
    "total_throughput": "total_tps_full",
    "request_throughput": "req_per_s",
    **_times("tpot", "tpot"),
    **_times("ttft", "ttft"),
    **_times("e2e", "e2el"),
    **_times("icl", "itl", "p50 p99"),
}

# AIPerf: metric, statistic → ours; units are checked when they are read
AIPERF_METRICS = {
    ("output_token_throughput", "avg"): "out_tps_full",
    ("total_token_throughput", "avg"): "total_tps_full",
    ("request_throughput", "avg"): "req_per_s",
    **{
        (theirs, statistic): f"{ours}_{what}_ms"
        for theirs, ours in (
            ("time_to_first_token", "ttft"),
            ("inter_token_latency", "tpot"),
            ("request_latency", "e2e"),
        )
        for statistic, what in (("avg", "mean"), ("p50", "p50"), ("p90", "p90"), ("p99", "p99"))
    },
    ("inter_chunk_latency", "p50"): "icl_p50_ms",
    ("inter_chunk_latency", "p99"): "icl_p99_ms",
}

# GuideLLM: metric → our stem, and what makes milliseconds of its unit; rates have a mean only
GUIDELLM_TIMES = {
    "time_to_first_token_ms": ("ttft", 1.0),
    "inter_token_latency_ms": ("tpot", 1.0),
    "request_latency": ("e2e", 1000.0),
}
GUIDELLM_RATES = {
    "output_tokens_per_second": "out_tps_full",
    "tokens_per_second": "total_tps_full",
    "requests_per_second": "req_per_s",
}

# what names a cell, as other tools spell it
IDENTITY = {
    "model_id": "model",
    "model_name": "model",
    "max_concurrency": "concurrency",
    "n_gpus": "gpus",
    "num_gpus": "gpus",
    "tensor_parallel_size": "tp",
    "input_len": "isl",
    "output_len": "osl",
    "random_input_len": "isl",
    "random_output_len": "osl",
}
# columns that repeat what the others say: computed here, never read
DERIVED = ("delta_pct", "change_pct", "speedup", "delta", "ratio")
