"""What the answers of two arms say: accuracy and equivalence, from the run folders of a comparison."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.accuracy.questions import read_questions
from harness.accuracy.score import AccuracyScore
from harness.accuracy.words import task_words
from harness.records import Record, RecordError
from harness.tier import Tier
from reports.compare.accuracy import Answer, TaskAnswers, compare_accuracy
from reports.compare.cells import cell_name
from reports.compare.equivalence import compare_equivalence
from reports.compare.finding import Finding, Gate
from reports.compare.words import Verdict

TaskKey = tuple[str, str, str, int, int]  # cell, task, part, shots, concurrency


def judge_answers(
    baseline: Sequence[Record], candidate: Sequence[Record], folders: Sequence[Path], *, tier: Tier | None
) -> list[Finding]:
    """Findings on accuracy and equivalence of the records of both arms; `folders` of their runs.

    Gated in every tier that gates anything. Raises RecordError, OSError.
    """
    gated = tier is not None and bool(tier.gated)
    return [*_accuracy(baseline, candidate, folders, gated), *_equivalence(baseline, candidate, gated)]


def _context(gate: Gate, cell_id: str, cell: str, gated: bool, command: str) -> Finding:
    return Finding(gate=gate, cell_id=cell_id, cell=cell, verdict=Verdict.PASS, gated=gated, command=command)


def _accuracy(
    baseline: Sequence[Record], candidate: Sequence[Record], folders: Sequence[Path], gated: bool
) -> list[Finding]:
    asked = [_scores(records) for records in (baseline, candidate)]
    if not asked[0] and not asked[1]:
        return []
    rows = [
        _rows(folder, {one.launch_id for one in records}, {one.arm_id for one in records})
        for folder, records in zip(folders, (baseline, candidate), strict=True)
    ]
    for folder, side, kept in zip(folders, asked, rows, strict=True):
        _check_complete(folder, side, kept)
    commands = {record.cell_id: record.command for record in candidate}
    found: list[Finding] = []
    for key in sorted(asked[0].keys() | asked[1].keys()):
        name = next(side[key][0] for side in asked if key in side)
        context = _context("accuracy", key[0], name, gated, commands.get(key[0], ""))
        answers = [_answers(side.get(key), rows[at].get(key, {})) for at, side in enumerate(asked)]
        if not answers[1].repeats:
            found.append(_absent(context, Verdict.MISSING, "not scored in the candidate"))
        elif not answers[0].repeats:
            found.append(_absent(context, Verdict.NEW, "not scored in the baseline"))
        else:
            found += compare_accuracy(context, answers[0], answers[1])
    return found


def _check_complete(
    folder: Path, asked: Mapping[TaskKey, tuple[str, list[AccuracyScore]]], rows: Mapping[TaskKey, Any]
) -> None:
    """A score without its answers is a file that was lost, not a question that was never asked."""
    for key, (name, scores) in asked.items():
        if key not in rows and any(score.answered for score in scores):
            raise RecordError(
                f"{folder}: no answers of {name}, although its score is there; restore accuracy.parquet, or "
                "measure again"
            )


def _absent(context: Finding, verdict: Verdict, reason: str) -> Finding:
    return dataclasses.replace(context, verdict=verdict, reason=reason)


def _scores(records: Sequence[Record]) -> dict[TaskKey, tuple[str, list[AccuracyScore]]]:
    """Every score that was asked for, with a name."""
    found: dict[TaskKey, tuple[str, list[AccuracyScore]]] = {}
    for record in records:
        for score in record.accuracy:
            key = (record.cell_id, score.task, score.part, score.shots, score.concurrency)
            name = f"{cell_name(record)}: {task_words(score)}"
            found.setdefault(key, (name, []))[1].append(score)
    return found


def _rows(
    folder: Path, launches: set[str], arms: set[str]
) -> dict[TaskKey, dict[str, dict[str, Mapping[str, Any]]]]:
    """Task → launch → question → row."""
    found: dict[TaskKey, dict[str, dict[str, Mapping[str, Any]]]] = {}
    for row in read_questions(folder).to_pylist():
        if row["launch_id"] in launches and row["arm_id"] in arms:
            key = (row["cell_id"], row["task"], row["part"], row["shots"], row["concurrency"])
            question = f"{row['doc_id']:06d} {row['prompt_hash']}"
            found.setdefault(key, {}).setdefault(row["launch_id"], {})[question] = row
    return found


def _answers(
    scores: tuple[str, list[AccuracyScore]] | None, rows: Mapping[str, Mapping[str, Mapping[str, Any]]]
) -> TaskAnswers:
    versions = {f"{one.task_version}, numbers {one.numeric_version}" for one in (scores[1] if scores else [])}
    return TaskAnswers(
        repeats=[{key: _answer(row) for key, row in rows[launch].items()} for launch in sorted(rows)],
        versions=frozenset(versions),
    )


def _answer(row: Mapping[str, Any]) -> Answer:
    if row["error"] is not None or row["numeric_correct"] is None:
        return Answer(correct=None)
    return Answer(
        correct=bool(row["numeric_correct"]),
        without_number=row["numeric_parsed"] is None,
        truncated=bool(row["truncated"]),
    )


def _equivalence(baseline: Sequence[Record], candidate: Sequence[Record], gated: bool) -> list[Finding]:
    """Of each cell that carries one; its reference as the baseline's records have it, against itself."""
    itself = {own.arm: own for record in baseline if (own := record.equivalence) and own.against == "itself"}
    found: list[Finding] = []
    for record in candidate:
        arm = record.equivalence
        if arm is None or arm.against != "reference":
            continue
        context = _context("equivalence", record.cell_id, cell_name(record), gated, record.command)
        found += compare_equivalence(context, arm, itself.get(arm.reference))
    return found
