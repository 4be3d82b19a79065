"""What null means on a CPU and on a GPU: sizes of the work, limits of the engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class PlatformDefaults:
    """What null means. Only sizes differ between platforms, never the model."""

    isl: int
    osl: int
    measure_s: float
    warmup_s: float
    timeout_s: float
    warmup_waves: int  # requests per slot
    requests_per_slot: int  # measured, at least
    requests_in_one_slot: int  # measured at concurrency 1, at least
    lag_limit_ms: float  # of the client; the larger of this and the share below
    lag_share_of_ttft: float
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    kv_pages: int

    def min_requests(self, concurrency: int) -> int:
        """Measured requests that a closed loop sends at least."""
        least = self.requests_in_one_slot if concurrency == 1 else 0
        return max(self.requests_per_slot * concurrency, least)


CPU_DEFAULTS = PlatformDefaults(
    isl=32, osl=16, measure_s=15.0, warmup_s=5.0, timeout_s=600.0,
    warmup_waves=1, requests_per_slot=2, requests_in_one_slot=2, lag_limit_ms=10.0, lag_share_of_ttft=0.05,
    max_num_seqs=1024, max_num_batched_tokens=2048, max_model_len=8192, kv_pages=2048,
)  # fmt: skip
GPU_DEFAULTS = PlatformDefaults(
    isl=1024, osl=1024, measure_s=60.0, warmup_s=20.0, timeout_s=3600.0,
    warmup_waves=2, requests_per_slot=5, requests_in_one_slot=32, lag_limit_ms=1.0, lag_share_of_ttft=0.01,
    max_num_seqs=1024, max_num_batched_tokens=8192, max_model_len=8192, kv_pages=32768,
)  # fmt: skip
