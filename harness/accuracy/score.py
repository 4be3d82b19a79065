"""What a task's answers add up to. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, model_validator

from harness.accuracy.numeric import NUMERIC_VERSION
from harness.accuracy.spec import Prepared, Stage
from harness.intervals import LEVEL, Sums, ratio_interval, share_interval, wilson
from paths.api import Counters

VALID_SHARE = 0.90  # of the requests must have been answered, or there is no verdict about the answers
TRUNCATED_LIMIT = 0.10  # share of answers cut by the length limit above which a score says little
_COUNTERS = (
    "decode_tokens", "decode_tokens_sparse", "output_tokens", "prompt_tokens", "verify_steps",
    "drafted_tokens", "accepted_tokens", "accepted_at", "verified_at", "truncated_tokens", "preemptions",
)  # fmt: skip


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Proportion(_Model):
    """Right answers of all that were given, with a Wilson interval. `value` is None when `n` is 0."""

    value: float | None
    correct: int
    n: int
    low: float | None = None
    high: float | None = None

    @model_validator(mode="after")
    def _is_share(self) -> Proportion:
        if not 0 <= self.correct <= self.n or (self.value is None) != (self.n == 0):
            raise ValueError(f"{self.correct} right answers of {self.n} are no share")
        if self.value is not None and not math.isclose(self.value, self.correct / self.n, abs_tol=1e-9):
            raise ValueError(f"a share of {self.value} is not {self.correct} of {self.n}")
        return self

    @classmethod
    def of(cls, correct: int, n: int) -> Proportion:
        if n == 0:
            return cls(value=None, correct=0, n=0)
        low, high = wilson(correct / n, trials=n, z=NormalDist().inv_cdf((1 + LEVEL) / 2))
        return cls(value=correct / n, correct=correct, n=n, low=low, high=high)


class DraftFigure(_Model):
    """A figure over verifications of drafts; its interval of 95 % knows that answers are clusters."""

    value: float
    n: int  # verifications, or drafts
    ci95: tuple[float, float] | None = None  # None: too few answers


class DraftScore(_Model):
    """Acceptance of drafts while real answers were generated, as in `harness.acceptance`."""

    al: DraftFigure  # 1 + accepted / verifications
    c_0: DraftFigure  # verifications that accepted their first draft
    draft_rate: DraftFigure  # accepted / drafted


class AccuracyScore(_Model):
    """One task asked once on one launch. `acc_numeric` is the one that counts.

    The three scores are None exactly when `reason` says why there is no verdict. Failed requests are in
    none of them; truncated, empty and unparsable answers count as not correct.
    """

    task: str
    part: str  # full, or first: the first questions once more at concurrency 1
    concurrency: int
    shots: int
    limit: int | None  # of the questions, as asked
    questions: int  # asked for
    answered: int  # rows that there are; fewer when the scoring did not end
    complete: bool
    acc_numeric: Proportion | None = None
    acc_strict: Proportion | None = None
    acc_flexible: Proportion | None = None
    reason: str | None = None
    errors: int = 0
    first_error: str | None = None
    truncated: int = 0
    unparsable: int = 0
    empty: int = 0
    run_on: int = 0  # went on with a question of their own
    several_markers: int = 0
    gen_tokens_mean: float | None = None
    seconds: float | None = None
    dsa_active_token_frac: float | None = None  # of decode tokens, context longer than index_topk
    drafts: DraftScore | None = None  # None: nothing was drafted
    counters: dict[str, Any] | None = None  # of the engine, difference over this scoring
    prompts_hash: str | None = None  # of all prompts as ids; scores with other prompts cannot be compared
    numeric_version: str = NUMERIC_VERSION
    task_version: str | None = None

    @model_validator(mode="after")
    def _score_or_reason(self) -> AccuracyScore:
        if (self.acc_numeric is None) == (self.reason is None):
            raise ValueError("a score has either values or a reason for having none")
        return self


def summarize_answers(
    stage: Stage,
    rows: Sequence[Mapping[str, Any]],
    *,
    shots: int,
    prepared: Prepared | None,
    seconds: float | None,
    before: Counters | None,
    after: Counters | None,
    ended: str | None,
) -> AccuracyScore:
    """The score of one stage. `ended` says why it stopped before its last question; None: it did not."""
    valid = [row for row in rows if row["error"] is None]
    failed = [row for row in rows if row["error"] is not None]
    reason = _no_verdict(len(rows), failed, ended)
    counted = counter_difference(before, after)

    def count(column: str) -> int:
        return sum(bool(row[column]) for row in valid)

    def proportion(name: str) -> Proportion | None:
        return None if reason is not None else Proportion.of(count(f"{name}_correct"), len(valid))

    return AccuracyScore(
        task=stage.task,
        part=stage.part,
        concurrency=stage.concurrency,
        shots=shots,
        limit=stage.limit,
        questions=_asked(stage, prepared, len(rows)),
        answered=len(rows),
        complete=ended is None,
        acc_numeric=proportion("numeric"),
        acc_strict=proportion("strict"),
        acc_flexible=proportion("flexible"),
        reason=reason,
        errors=len(failed),
        first_error=failed[0]["error"] if failed else None,
        truncated=count("truncated"),
        unparsable=count("unparsable"),
        empty=sum(row["outcome"] == "empty" for row in valid),
        run_on=count("run_on"),
        several_markers=count("several_markers"),
        gen_tokens_mean=sum(row["generated_tokens"] for row in valid) / len(valid) if valid else None,
        seconds=seconds,
        dsa_active_token_frac=sparse_share(counted),
        drafts=draft_score(valid),
        counters=counted,
        prompts_hash=prepared.prompts_hash if prepared else None,
        task_version=prepared.version if prepared else None,
    )


def _asked(stage: Stage, prepared: Prepared | None, answered: int) -> int:
    known = prepared.questions if prepared else answered
    return known if stage.limit is None else min(stage.limit, known)


def _no_verdict(answered: int, failed: Sequence[Mapping[str, Any]], ended: str | None) -> str | None:
    """A harness or engine that fails is no wrong answer of the model."""
    if answered == 0:
        return f"no question was answered{f': {ended}' if ended else ''}"
    if (answered - len(failed)) / answered < VALID_SHARE:
        first = failed[0]["error"]
        return f"no verdict: {len(failed)} of {answered} requests failed; the first said: {first}"
    return None


def counter_difference(before: Counters | None, after: Counters | None) -> dict[str, Any] | None:
    """What the engine counted in between, of the counters that say something about answers."""
    if before is None or after is None:
        return None
    difference: dict[str, Any] = {}
    for name in _COUNTERS:
        start, end = getattr(before, name), getattr(after, name)
        if isinstance(end, list):
            start = start or [0] * len(end)
            difference[name] = [b - a for a, b in zip(start, end, strict=True)]
        else:
            difference[name] = end - start
    return difference


def sparse_share(counted: Mapping[str, Any] | None) -> float | None:
    """Share of decode tokens whose context is longer than index_topk; None when none was decoded."""
    if counted is None or not counted["decode_tokens"]:
        return None
    return float(counted["decode_tokens_sparse"] / counted["decode_tokens"])


def draft_score(rows: Sequence[Mapping[str, Any]]) -> DraftScore | None:
    """Acceptance over all answers; None where no draft was verified."""
    columns = ("verifications", "drafted", "accepted", "first_accepted")
    told = [row for row in rows if row["verifications"]]
    if not told:
        return None
    steps, drafted, accepted, first = (np.array([row[name] for row in told]) for name in columns)
    al = 1 + float(accepted.sum() / steps.sum())
    return DraftScore(
        al=DraftFigure(value=al, n=int(steps.sum()), ci95=ratio_interval(al, accepted, steps)),
        c_0=_share(first, steps),
        draft_rate=_share(accepted, drafted),
    )


def _share(part: Sums, whole: Sums) -> DraftFigure:
    share = float(part.sum() / whole.sum())
    return DraftFigure(value=share, n=int(whole.sum()), ci95=share_interval(share, part, whole))
