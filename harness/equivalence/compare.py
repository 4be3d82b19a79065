"""Two arms' answers to the same prompts, compared. Pure.

N tokens of an answer, K best alternatives of each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from harness.equivalence.score import NOT_NUMBERS, Forced, Greedy, Level

Ids = npt.NDArray[np.int32]
Logs = npt.NDArray[np.float64]

_LEAST = 1e-12  # a probability that rounding made 0 or less
# a lead of the best token below which another order of additions may choose another one, by dtype
NEAR_TIE = {"float32": 1e-4, "bf16": 0.1}


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Of one answer's tokens, given through decode."""

    logprob: Logs  # [N]
    top_ids: Ids  # [N, K], best first
    top_logprobs: Logs  # [N, K]

    @property
    def margin(self) -> Logs:
        """[N] lead of the best token over the second; inf where only one alternative was told."""
        if self.top_logprobs.shape[1] < 2:
            return np.full(len(self.logprob), np.inf)
        return self.top_logprobs[:, 0] - self.top_logprobs[:, 1]


@dataclass(frozen=True, kw_only=True)
class Answers:
    """One pass of one arm at one concurrency, one entry per prompt."""

    concurrency: int
    tokens: Sequence[Ids]
    scores: Sequence[Scores] | None  # of the reference's tokens; None: `reason` says why
    reason: str | None = None


def compare(reference: Answers, other: Answers, *, near_tie: float) -> Level:
    """`other` against `reference`: both answered the same prompts, both scored the reference's tokens."""
    greedy = _greedy(reference, other, near_tie)
    if reference.scores is None or other.scores is None:
        reason = other.reason or reference.reason or "no scores"
        return Level(concurrency=other.concurrency, greedy=greedy, reason=reason)
    forced = _forced(reference.scores, other.scores, near_tie)
    if forced is None:
        return Level(concurrency=other.concurrency, greedy=greedy, reason=NOT_NUMBERS)
    return Level(concurrency=other.concurrency, greedy=greedy, forced=forced)


def first_divergence(one: Ids, other: Ids) -> int | None:
    """Index of the first token that differs; the end of the shorter if it begins the longer; None: equal."""
    common = min(len(one), len(other))
    differing = np.flatnonzero(one[:common] != other[:common])
    if len(differing):
        return int(differing[0])
    return None if len(one) == len(other) else common


def _greedy(reference: Answers, other: Answers, near_tie: float) -> Greedy:
    pairs = zip(reference.tokens, other.tokens, strict=True)
    first = [first_divergence(one, two) for one, two in pairs]
    margins = [
        float(reference.scores[prompt].margin[at])
        for prompt, at in enumerate(first)
        if at is not None and reference.scores is not None and at < len(reference.scores[prompt].logprob)
    ]
    known = [margin for margin in margins if math.isfinite(margin)]
    left = [at for at in first if at is not None]
    return Greedy(
        prompts=len(first),
        identical=first.count(None),
        first_div=first,
        first_div_median=median(left) if left else None,
        near_ties=None if reference.scores is None else sum(margin < near_tie for margin in margins),
        near_tie=near_tie,
        margin_max=max(known, default=None),
        empty=sum(len(tokens) == 0 for tokens in other.tokens),
    )


def _forced(reference: Sequence[Scores], other: Sequence[Scores], near_tie: float) -> Forced | None:
    """None when one of the log-probabilities is not a number."""
    change = np.concatenate([b.logprob - a.logprob for a, b in zip(reference, other, strict=True)])
    agree = np.concatenate(
        [a.top_ids[:, 0] == b.top_ids[:, 0] for a, b in zip(reference, other, strict=True)]
    )
    clear = np.concatenate([a.margin for a in reference]) >= near_tie
    kl = np.concatenate([divergence(a, b) for a, b in zip(reference, other, strict=True)])
    if not len(change) or not np.isfinite(change).all() or not np.isfinite(kl).all():
        return None
    return Forced(
        positions=len(change),
        top1_agree=float(agree.mean()),
        clear_positions=int(clear.sum()),
        clear_agree=float(agree[clear].mean()) if clear.any() else None,
        mean_abs_dlogprob=float(np.abs(change).mean()),
        max_abs_dlogprob=float(np.abs(change).max()),
        mean_kl=float(kl.mean()),
        max_kl=float(kl.max()),
        alternatives=reference[0].top_ids.shape[1],
    )


def divergence(reference: Scores, other: Scores) -> Logs:
    """[N] KL(reference ‖ other) in nats over the reference's K best tokens and all others as one.

    A token that is not among the other's K best counts with the probability of its last one, which is more
    than it has: the result is then a lower bound.
    """
    found = reference.top_ids[:, :, None] == other.top_ids[:, None, :]  # [N, K, K]
    at = np.where(found.any(axis=2), found.argmax(axis=2), other.top_ids.shape[1] - 1)
    p, log_p = np.exp(reference.top_logprobs), reference.top_logprobs
    log_q = np.take_along_axis(other.top_logprobs, at, axis=1)
    rest_p = np.clip(1 - p.sum(axis=1), _LEAST, None)
    rest_q = np.clip(1 - np.exp(log_q).sum(axis=1), _LEAST, None)
    return np.maximum((p * (log_p - log_q)).sum(axis=1) + rest_p * np.log(rest_p / rest_q), 0.0)
