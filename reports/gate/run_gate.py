"""Judges a folder that has a comparison.json, offline and any number of times."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.errors import Cause
from harness.records import write_text_atomically
from harness.tier import Tier
from reports.compare.compare import compare
from reports.compare.finding import Comparison, Finding
from reports.gate.answers import judge_answers
from reports.gate.arms import load_arms
from reports.gate.junit import write_junit
from reports.gate.outcome import Outcome, judge
from reports.gate.plan_file import ComparisonFile, read_floor, read_plan
from reports.gate.summary import render_summary
from reports.gate.verdict import VerdictFile, build_verdict, gate_entry

VERDICT, JUNIT, SUMMARY = "verdict.json", "junit.xml", "summary.md"


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Everything that a report needs."""

    plan: ComparisonFile
    comparison: Comparison
    others: Sequence[Finding]
    outcome: Outcome
    verdict: VerdictFile


def judge_folder(
    folder: Path,
    *,
    tier: Tier | None = None,
    others: Sequence[Finding] = (),
) -> Judgement:
    """Judges the records that comparison.json names. Writes nothing. Raises RecordError.

    `tier`: judge by this one instead; None: by the one of the file.
    """
    plan = read_plan(folder)
    if tier is not None:
        plan = plan.model_copy(update={"tier": tier})
    loaded = load_arms(plan, folder)
    floor = read_floor(
        (folder / plan.floor) if plan.floor else None,
        today=plan.judged_on,
        oldest_days=plan.tier.floor_days if plan.tier else 14,
        fingerprint=plan.fingerprint,
    )
    comparison = compare(loaded.arms, tier=plan.tier, floor=floor)
    comparison = dataclasses.replace(comparison, notes=(*comparison.notes, *plan.notes, *loaded.warnings))
    if loaded.arms.refusal is None:
        others = [*others, *judge_answers(*loaded.records, loaded.folders, tier=plan.tier)]
    causes = [Cause(code=one.code, why=one.why) for one in plan.found_wrong]
    outcome = judge(comparison, others=others, causes=causes)
    verdict = build_verdict(
        comparison,
        outcome,
        run_id=folder.name,
        baseline=loaded.baseline,
        candidate=loaded.candidate,
        others=others,
        unexpected_diffs=loaded.unexpected_diffs,
        artifacts={"junit": JUNIT, "summary": SUMMARY, "report": "report.html"},
    )
    return Judgement(plan=plan, comparison=comparison, others=others, outcome=outcome, verdict=verdict)


def write_judgement(folder: Path, judgement: Judgement) -> str:
    """verdict.json, junit.xml and summary.md; returns the summary."""
    tier = judgement.plan.tier
    text = judgement.verdict.model_dump_json(indent=2) + "\n"
    write_text_atomically(folder / VERDICT, text)
    write_junit(judgement.verdict, folder / JUNIT, blocking=tier is not None and tier.inconclusive == "block")
    findings = (*judgement.comparison.findings, *judgement.others)
    shown = [one for one in findings if one.gated] or list(findings)
    summary = render_summary(judgement.verdict, [gate_entry(one) for one in shown])
    write_text_atomically(folder / SUMMARY, summary)
    return summary
