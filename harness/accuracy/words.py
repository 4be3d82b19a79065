"""Scores in words and numbers, for the terminal and for the notes of a record. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from harness.accuracy.score import TRUNCATED_LIMIT, AccuracyScore, DraftFigure, Proportion
from harness.accuracy.spec import PREFIX

SPARSE_ENOUGH = 0.5  # share of decode tokens below which a score says little about sparse selection
NONE = "–"


def task_words(score: AccuracyScore) -> str:
    """gsm8k 5-shot c64, with what it leaves out."""
    few = f", first {score.questions}" if score.part == PREFIX or score.limit is not None else ""
    return f"{score.task} {score.shots}-shot c{score.concurrency}{few}"


def proportion_words(proportion: Proportion | None) -> str:
    """0.842 [0.807, 0.871]."""
    if proportion is None or proportion.value is None:
        return NONE
    return f"{proportion.value:.3f} [{proportion.low:.3f}, {proportion.high:.3f}]"


def estimate_words(estimate: DraftFigure | None) -> str:
    """2.41 [2.35, 2.47]."""
    if estimate is None:
        return NONE
    interval = f" [{estimate.ci95[0]:.3f}, {estimate.ci95[1]:.3f}]" if estimate.ci95 else ""
    return f"{estimate.value:.3f}{interval}"


def score_words(score: AccuracyScore) -> str:
    """One score in one line."""
    if score.acc_numeric is None:
        return f"accuracy {task_words(score)}: {score.reason}"
    shares = (
        f"strict {proportion_words(score.acc_strict)}",
        f"flexible {proportion_words(score.acc_flexible)}",
    )
    words = [
        f"accuracy {task_words(score)}: numeric {proportion_words(score.acc_numeric)}",
        *shares,
        f"n {score.acc_numeric.n}",
        f"truncated {score.truncated}, unparsable {score.unparsable}",
        f"sparse decode {share_words(score.dsa_active_token_frac)}",
    ]
    if score.drafts is not None:
        words.append(f"acceptance length {estimate_words(score.drafts.al)}")
        words.append(f"first draft accepted {estimate_words(score.drafts.c_0)}")
    if not score.complete:
        words.append(f"stopped after {score.answered} of {score.questions}")
    return "; ".join(words)


def share_words(share: float | None) -> str:
    return NONE if share is None else f"{share:.0%}"


def score_notes(scores: Sequence[AccuracyScore], *, selects: bool = True) -> list[str]:
    """What a reader of these scores must know, in sentences. `selects`: the model has an indexer."""
    notes = []
    for score in scores:
        name, sparse = task_words(score), score.dsa_active_token_frac
        if selects and sparse is not None and sparse < SPARSE_ENOUGH:
            notes.append(
                f"{name} did not exercise sparsity: {sparse:.0%} of its decode tokens had a context longer"
                " than index_topk; raise shots"
            )
        if score.errors and score.reason is None:
            notes.append(
                f"{name}: {score.errors} of {score.answered} requests failed and are not in the score; the"
                f" first said: {score.first_error}"
            )
        if score.several_markers:
            notes.append(f"{name}: {score.several_markers} answers have several ####; the first one counts")
    return notes


def score_faults(scores: Sequence[AccuracyScore]) -> list[str]:
    """Why scores say little or nothing; empty when they are sound."""
    faults = []
    for score in scores:
        if score.reason is not None:
            faults.append(f"{task_words(score)}: {score.reason}")
        elif not score.complete:
            faults.append(f"{task_words(score)}: stopped after {score.answered} of {score.questions}")
        elif score.truncated > TRUNCATED_LIMIT * (valid := score.answered - score.errors):
            faults.append(
                f"{task_words(score)}: {score.truncated} of {valid} answers were cut by the length limit"
                f" (allowed {TRUNCATED_LIMIT:.0%})"
            )
    return faults
