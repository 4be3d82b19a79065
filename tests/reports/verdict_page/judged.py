"""Comparisons as the gate judges them: run folders on disk, and hand-made ones without records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path

from harness.records import Check, Metric, Record
from harness.tier import Tier
from reports.compare.finding import Comparison, Finding
from reports.gate.outcome import judge
from reports.gate.plan_file import (
    ArmSource,
    ComparisonFile,
    FloorEntry,
    FloorFile,
    write_floor,
    write_plan,
)
from reports.gate.run_gate import Judgement, judge_folder
from reports.gate.verdict import ArmSummary, build_verdict
from reports.verdict_page.inputs import ArmRun, Compared
from reports.verdict_page.page import render_comparison, write_comparison
from tests.reports.compare.arms import PR, QUIET
from tests.reports.conftest import make_record, write_run

NOISE = (1.0, 1.002, 0.999, 1.001, 0.998, 1.0015)
TODAY = date(2026, 1, 2)


def judged(
    comparison: Comparison, *, others: Sequence[Finding] = (), names=("generic_mrv1", "dsa_mrv2")
) -> Judgement:
    """What the gate makes of a comparison."""
    baseline, candidate = (ArmSummary(name=name, runs=["run-1"], revisions=["0" * 40]) for name in names)
    outcome = judge(comparison, others=others)
    verdict = build_verdict(
        comparison, outcome, run_id="run-1", baseline=baseline, candidate=candidate, others=others
    )
    plan = ComparisonFile(
        baseline=ArmSource(run_dir="."),
        candidate=ArmSource(run_dir="."),
        tier=comparison.tier,
        judged_on=TODAY,
    )
    return Judgement(plan=plan, comparison=comparison, others=others, outcome=outcome, verdict=verdict)


def page_without_records(judgement: Judgement) -> str:
    """The page of a judgement whose runs have nothing to say."""
    arms = [
        ArmRun(name=one.name, folder=Path(), problem="records.jsonl: no such file")
        for one in (judgement.verdict.baseline, judgement.verdict.candidate)
    ]
    return render_comparison(
        Compared(folder=Path(), judgement=judgement, baseline=arms[0], candidate=arms[1])
    )


def arm_record(
    arm: str, *, pair: int, cell: int, concurrency: int, factor: float = 1.0, cells: int = 1, **changes
) -> Record:
    """One cell on one launch of a pair in ABBA order. `factor`: of TPOT, above 1 is slower."""
    first = (pair % 2 == 0) == (arm == "generic_mrv1")
    noise = NOISE[(pair + (0 if first else 3)) % len(NOISE)]
    tpot = 2.0 * (1 + concurrency / 100) * factor * noise
    requested = {"path": arm, "concurrency": concurrency} | changes.pop("requested", {})
    metrics = {
        "out_tps": Metric(value=1000 * concurrency / tpot, unit="tok/s", better="up", n=64),
        "out_tps_per_gpu": Metric(value=1000 * concurrency / tpot, unit="tok/s/gpu", better="up", n=64),
        "tpot_pooled_ms": Metric(value=tpot, unit="ms", better="down", n=64),
        "interactivity": Metric(value=1000 / tpot, unit="tok/s/user", better="up", n=64),
        "ttft_p50_ms": Metric(value=12.0 * concurrency * noise, unit="ms", better="down", n=64),
        "success_rate": Metric(value=1.0, unit="fraction", better="up", n=64),
    } | changes.pop("metrics", {})
    slot = 0 if first else 1
    fields = {
        "launch_id": f"P{pair}{arm[0]}", "arm_id": arm, "cell_id": f"cell{cell:012d}",
        "pair": pair, "slot": slot,
        "label": f"{arm} tiny_v32 c={concurrency}", "metrics": metrics,
        "checks": {"success": Check(ok=True, detail="64 of 64"), "window_ok": Check(ok=True, detail="91 %")},
        "effective": {"runner": "V2" if arm == "dsa_mrv2" else "V1"},
    } | changes  # fmt: skip
    return make_record((pair * 2 + slot) * cells + cell, requested=requested, **fields)


def compared_folder(
    folder: Path,
    *,
    loads: Sequence[int] = (1, 16, 64),
    pairs: int = 4,
    factor: Callable[[int], float] = lambda load: 1.0,
    tier: Tier | None = PR,
    change: Callable[[Record], Record | None] = lambda record: record,
    **more,
) -> Path:
    """A run of two arms with an A/A floor beside it. `change` may replace a record, or drop it."""
    records = []
    for pair in range(pairs):
        for arm in ("generic_mrv1", "dsa_mrv2"):
            for cell, load in enumerate(loads):
                times = factor(load) if arm == "dsa_mrv2" else 1.0
                made = change(
                    arm_record(
                        arm, pair=pair, cell=cell, concurrency=load, factor=times, cells=len(loads), **more
                    )
                )
                if made is not None:
                    records.append(made)
    write_run(folder, records, run_id="run-1")
    entries = [
        FloorEntry(cell_id=cell_id, metric=metric, losses=list(QUIET))
        for cell_id in sorted({record.cell_id for record in records})
        for metric in PR.gated
    ]
    write_floor(
        folder / "aa.json",
        FloorFile(fingerprint="f", measured_on=date(2026, 1, 1), run_id="aa-1", entries=entries),
    )
    write_plan(
        folder,
        ComparisonFile(
            baseline=ArmSource(run_dir=".", arm_ids=["generic_mrv1"]),
            candidate=ArmSource(run_dir=".", arm_ids=["dsa_mrv2"]),
            tier=tier,
            floor="aa.json",
            fingerprint="f",
            judged_on=TODAY,
        ),
    )
    return folder


def page_of(folder: Path) -> str:
    return write_comparison(folder, judge_folder(folder)).read_text(encoding="utf-8")
