"""Questions that one arm answers rightly and the other wrongly, with both answers beside each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.accuracy.questions import read_questions
from reports.verdict_page.inputs import ArmRun, Compared

MOST_FLIPS = 20
MOST_LETTERS = 400  # of an answer; its end matters more, there stands the number
_KEY = ("cell_id", "task", "part", "shots", "concurrency", "doc_id", "prompt_hash")
_COLUMNS = [*_KEY, "launch_id", "arm_id", "numeric_correct", "outcome", "answer", "target_number"]


@dataclass(frozen=True, kw_only=True)
class Flip:
    """One question whose answer changed sides."""

    task: str
    question: int
    worse: bool
    target: str
    baseline: str
    candidate: str


@dataclass(frozen=True, kw_only=True)
class Flips:
    """Those that became wrong first."""

    shown: list[Flip]
    worse: int
    better: int


def flips(data: Compared) -> Flips:
    """From the first scoring of each arm; empty where an arm has none."""
    baseline, candidate = (_first_answers(arm) for arm in data.arms)
    found = [
        _flip(baseline[key], candidate[key])
        for key in sorted(baseline.keys() & candidate.keys(), key=str)
        if {baseline[key]["numeric_correct"], candidate[key]["numeric_correct"]} == {True, False}
    ]
    worse = [one for one in found if one.worse]
    better = [one for one in found if not one.worse]
    return Flips(shown=[*worse, *better][:MOST_FLIPS], worse=len(worse), better=len(better))


def _first_answers(arm: ArmRun) -> dict[tuple[Any, ...], Mapping[str, Any]]:
    launches = {record.launch_id: record.arm_id for record in arm.records if record.accuracy}
    if not launches:
        return {}
    found: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for row in read_questions(arm.folder).select(_COLUMNS).to_pylist():
        if launches.get(row["launch_id"]) == row["arm_id"]:
            key = tuple(row[name] for name in _KEY)
            if key not in found or row["launch_id"] < found[key]["launch_id"]:
                found[key] = row
    return found


def _flip(baseline: Mapping[str, Any], candidate: Mapping[str, Any]) -> Flip:
    return Flip(
        task=f"{baseline['task']}, {baseline['part']}, c{baseline['concurrency']}",
        question=baseline["doc_id"],
        worse=bool(baseline["numeric_correct"]),
        target=str(baseline["target_number"]),
        baseline=_shown(baseline),
        candidate=_shown(candidate),
    )


def _shown(row: Mapping[str, Any]) -> str:
    text = str(row["answer"] or "")
    cut = text if len(text) <= MOST_LETTERS else f"…{text[-MOST_LETTERS:]}"
    return f"({row['outcome']}) {cut}"
