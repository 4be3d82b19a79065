"""The one table of metrics that can be compared: direction, unit, margin and absolute floor. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Better = Literal["up", "down"]
MOST_DRAFTS = 16  # positions that have a row


@dataclass(frozen=True, kw_only=True)
class MetricRule:
    """How changes of one metric are judged.

    `margin`: the largest loss that is called harmless; of scale `ratio` a fraction (0.02: 2 %), of scale
    `difference` in `unit`. `absolute`: changes up to this, in `unit`, never count as a loss, however large
    they are in percent.
    """

    name: str
    unit: str
    better: Better
    margin: float
    absolute: float = 0.0
    scale: Literal["ratio", "difference"] = "ratio"
    gate: Literal["performance", "acceptance", "accuracy", "equivalence"] = "performance"

    @property
    def worse_sign(self) -> int:
        """+1 if a larger value is a loss, -1 if a smaller one is."""
        return 1 if self.better == "down" else -1


def _rate(name: str, unit: str, margin: float = 0.02) -> MetricRule:
    return MetricRule(name=name, unit=unit, better="up", margin=margin)


def _time(stem: str, shows: str, *, margin: float, tail: float, absolute: float) -> list[MetricRule]:
    """Rows of one latency; p90, p99 and the maximum have the margin `tail`."""
    return [
        MetricRule(
            name=f"{stem}_{what}_ms",
            unit="ms",
            better="down",
            margin=tail if what in ("p90", "p99", "max") else margin,
            absolute=absolute,
        )
        for what in shows.split()
    ]


_RULES = (
    _rate("out_tps", "tok/s"),
    _rate("out_tps_per_gpu", "tok/s/gpu"),
    _rate("total_tps", "tok/s"),
    _rate("req_per_s", "req/s"),
    _rate("out_tps_full", "tok/s"),
    _rate("total_tps_full", "tok/s"),
    _rate("interactivity", "tok/s/user"),
    MetricRule(name="tpot_pooled_ms", unit="ms", better="down", margin=0.02, absolute=0.05),
    *_time("tpot", "mean p50 p90 p99", margin=0.02, tail=0.05, absolute=0.05),
    *_time("ttft", "mean p50 p90 p99", margin=0.05, tail=0.10, absolute=2.0),
    *_time("ttft_sched", "mean p50 p90 p99", margin=0.05, tail=0.10, absolute=2.0),
    *_time("e2e", "mean p50 p90 p99", margin=0.02, tail=0.05, absolute=2.0),
    *_time("e2e_sched", "mean p50 p90 p99", margin=0.02, tail=0.05, absolute=2.0),
    *_time("queue", "mean", margin=0.10, tail=0.10, absolute=2.0),
    *_time("itl", "mean p50 p99", margin=0.02, tail=0.10, absolute=0.05),
    *_time("icl", "p50 p99 max", margin=0.02, tail=0.10, absolute=0.05),
    MetricRule(name="cpu_s_per_token", unit="s/tok", better="down", margin=0.02),
    MetricRule(name="success_rate", unit="fraction", better="up", margin=0.001, scale="difference"),
    MetricRule(name="startup_cold_s", unit="s", better="down", margin=0.10, absolute=2.0),
    MetricRule(name="startup_warm_s", unit="s", better="down", margin=0.10, absolute=2.0),
    MetricRule(name="memory_bytes", unit="bytes", better="down", margin=0.02, absolute=64e6),
    MetricRule(name="step_ms", unit="ms", better="down", margin=0.02, absolute=0.05),
    *(
        MetricRule(name=name, unit="tok/step", better="up", margin=0.02, gate="acceptance")
        for name in ("al", "al_req_mean", "al_token_weighted")
    ),
    *(
        MetricRule(
            name=name, unit="fraction", better="up", margin=0.02, scale="difference", gate="acceptance"
        )
        for name in ("draft_rate", *(f"{kind}_{draft}" for kind in "cu" for draft in range(MOST_DRAFTS)))
    ),
    # of answers: compared question by question, prompt by prompt (`accuracy`, `equivalence`)
    MetricRule(
        name="accuracy", unit="fraction", better="up", margin=0.015, scale="difference", gate="accuracy"
    ),
    *(
        MetricRule(
            name=name, unit="fraction", better="down", margin=0.01, scale="difference", gate="accuracy"
        )
        for name in ("answers_without_number", "answers_truncated")
    ),
    MetricRule(
        name="identical_answers",
        unit="fraction",
        better="up",
        margin=0.05,
        scale="difference",
        gate="equivalence",
    ),
    MetricRule(
        name="clear_agreement",
        unit="fraction",
        better="up",
        margin=0.01,
        scale="difference",
        gate="equivalence",
    ),
    MetricRule(
        name="mean_kl",
        unit="nat",
        better="down",
        margin=2.0,  # up to three times that of the baseline against itself
        absolute=0.01,  # rounding of bf16 in another order
        gate="equivalence",
    ),
)  # fmt: skip

METRICS: dict[str, MetricRule] = {rule.name: rule for rule in _RULES}
