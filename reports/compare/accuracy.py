"""Answers of two arms to the same questions, paired question by question. Pure.

A loss is a share: baseline right and candidate wrong counts against the candidate. Non-inferior if the upper
bound of the loss is below the margin.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from harness.tier import ALPHA
from reports.compare.effects import Floats
from reports.compare.estimate import Estimate
from reports.compare.finding import Finding
from reports.compare.metric_table import METRICS, MetricRule
from reports.compare.power import POWER, t_quantile
from reports.compare.words import Verdict

VALID_SHARE = 0.90  # of the questions must have been answered in both arms


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer: right or not, without a number, cut by the length limit. None: the request failed."""

    correct: bool | None
    without_number: bool = False
    truncated: bool = False


@dataclass(frozen=True, kw_only=True)
class TaskAnswers:
    """One arm's answers to one task: per scored launch, question → answer.

    A key is whatever tells one question with its prompt from another.
    """

    repeats: Sequence[Mapping[str, Answer]]
    versions: frozenset[str] = frozenset()  # of task and of the reading of numbers


def compare_accuracy(context: Finding, baseline: TaskAnswers, candidate: TaskAnswers) -> list[Finding]:
    """Findings on `accuracy`, `answers_without_number` and `answers_truncated` of one task."""
    rules = [METRICS[name] for name in ("accuracy", "answers_without_number", "answers_truncated")]
    whole = dataclasses.replace(context, gate="accuracy", rule=rules[0])
    keys = [{key for repeat in arm.repeats for key in repeat} for arm in (baseline, candidate)]
    if baseline.versions != candidate.versions:
        said = [", ".join(sorted(arm.versions)) or "none" for arm in (baseline, candidate)]
        return [_refused(whole, f"task or scoring version {said[0]} against {said[1]}")]
    if keys[0] != keys[1]:
        only = [len(keys[0] - keys[1]), len(keys[1] - keys[0])]
        return [
            _refused(
                whole,
                f"other questions or prompts: {only[0]} only in the baseline,"
                f" {only[1]} only in the candidate",
            )
        ]
    shared = [key for key in sorted(keys[0]) if all(_answered(arm, key) for arm in (baseline, candidate))]
    lost = len(keys[0]) - len(shared)
    if not shared or len(shared) < VALID_SHARE * len(keys[0]):
        reason = f"no verdict: {lost} of {len(keys[0])} questions have no answer in one arm"
        return [dataclasses.replace(whole, verdict=Verdict.INVALID, reason=reason)]
    notes = [f"{lost} questions without an answer in one arm are left out"] if lost else []
    wrong = [_means(arm, shared, lambda one: not one.correct) for arm in (baseline, candidate)]
    found = [_judged(whole, rules[0], wrong[0], wrong[1], [*notes, *_remarks(baseline, wrong, shared)])]
    flags: tuple[Callable[[Answer], bool], ...] = (lambda one: one.without_number, lambda one: one.truncated)
    for rule, flag in zip(rules[1:], flags, strict=True):
        shares = [_means(arm, shared, flag) for arm in (baseline, candidate)]
        found.append(_judged(whole, rule, shares[0], shares[1], notes))
    return found


def _refused(whole: Finding, reason: str) -> Finding:
    return dataclasses.replace(whole, verdict=Verdict.NOT_COMPARABLE, reason=reason)


def _answered(arm: TaskAnswers, key: str) -> bool:
    return any(repeat.get(key) is not None and repeat[key].correct is not None for repeat in arm.repeats)


def _means(arm: TaskAnswers, keys: Sequence[str], flag: Callable[[Answer], bool]) -> Floats:
    """Share of a question's answers with the flag, [questions]; over the launches that answered it."""
    shares = []
    for key in keys:
        given = [repeat[key] for repeat in arm.repeats if key in repeat and repeat[key].correct is not None]
        shares.append(sum(flag(one) for one in given) / len(given))
    return np.asarray(shares, dtype=np.float64)


def paired_loss(baseline: Floats, candidate: Floats) -> Estimate:
    """Mean of candidate - baseline over questions [n], each a share of answers with a fault.

    SE = sqrt(S - (sum of d)^2 / n) / n with S the sum of d^2, after half a question was added to each cell of
    the two-by-two table (Agresti and Min 2005): n + 2 and S + 1. With one answer per arm S counts the
    discordant questions; averages of several answers need no other formula, and no SE is zero.
    """
    differences = candidate - baseline
    n, mean, total = len(differences), float(differences.mean()), len(differences) + 2
    squares, surplus = float((differences**2).sum()) + 1, float(differences.sum())
    se = math.sqrt(squares - surplus**2 / total) / total
    half = t_quantile(ALPHA, math.inf) * se
    return Estimate(
        n=n,
        interleaved=True,
        alpha=ALPHA,
        mean=mean,
        sd=se * math.sqrt(n),
        se=se,
        df=math.inf,
        lo=mean - half,
        hi=mean + half,
        p_worse=float(special.ndtr(-mean / se)),
        detectable=(t_quantile(ALPHA, math.inf) + t_quantile(1 - POWER, math.inf)) * se,
        losses=tuple(float(x) for x in differences),
    )


def _judged(
    whole: Finding, rule: MetricRule, baseline: Floats, candidate: Floats, notes: Sequence[str]
) -> Finding:
    """PASS if the loss is shown to be below the margin; FAIL if it is there and above half of it."""
    estimate, margin = paired_loss(baseline, candidate), rule.margin
    if estimate.hi < margin:
        better = estimate.hi < 0 and estimate.mean < -margin
        verdict, reason = (Verdict.IMPROVED if better else Verdict.PASS), None
    elif estimate.lo > 0 and estimate.mean > margin / 2:
        verdict, reason = Verdict.FAIL, None
    else:
        verdict, reason = Verdict.INCONCLUSIVE, "the interval reaches the margin: score more answers"
    shares = [float(arm.mean()) for arm in (baseline, candidate)]
    shown = [1 - share if rule.better == "up" else share for share in shares]
    return dataclasses.replace(
        whole,
        rule=rule,
        verdict=verdict,
        reason=reason,
        baseline=shown[0],
        candidate=shown[1],
        n_baseline=estimate.n,
        n_candidate=estimate.n,
        change_pct=None if shown[0] == 0 else 100 * (shown[1] / shown[0] - 1),
        estimate=estimate,
        margin=margin,
        notes=(*whole.notes, *notes),
    )


def _remarks(baseline: TaskAnswers, wrong: Sequence[Floats], shared: Sequence[str]) -> list[str]:
    """Discordant answers with McNemar's p, and whether there are more than the baseline has with itself."""
    worse, better = int((wrong[1] > wrong[0]).sum()), int((wrong[1] < wrong[0]).sum())
    p = mcnemar_p(worse=worse, better=better)
    remarks = [f"{worse} answers became wrong, {better} right; McNemar's exact p {p:.3g}"]
    own = _own_discordance(baseline, shared)
    if own is None:
        return [*remarks, "no second scoring of the baseline: its own discordance is unknown"]
    excess = discordance_excess_p(worse + better, len(shared), own=own[0], own_n=own[1])
    sign = "more than" if excess < ALPHA else "not more than"
    return [
        *remarks,
        f"discordant {(worse + better) / len(shared):.1%}, {sign} the baseline with itself"
        f" ({own[0] / own[1]:.1%}, p {excess:.3g})",
    ]


def _own_discordance(arm: TaskAnswers, keys: Sequence[str]) -> tuple[int, int] | None:
    """Discordant and all questions of the arm's first two scorings; None with one scoring."""
    if len(arm.repeats) < 2:
        return None
    first, second = arm.repeats[0], arm.repeats[1]
    both = [
        (first[key].correct, second[key].correct)
        for key in keys
        if key in first and key in second and None not in (first[key].correct, second[key].correct)
    ]
    return (sum(a != b for a, b in both), len(both)) if both else None


def mcnemar_p(*, worse: int, better: int) -> float:
    """Two-sided exact p of McNemar's test on discordant pairs."""
    from statsmodels.stats.contingency_tables import mcnemar  # heavy; only where answers are compared

    if worse + better == 0:
        return 1.0
    return float(mcnemar([[0, worse], [better, 0]], exact=True).pvalue)


def discordance_excess_p(count: int, n: int, *, own: int, own_n: int) -> float:
    """One-sided p of "no more discordant answers than the baseline has with itself" (Fisher's exact test)."""
    from scipy.stats import fisher_exact

    return float(fisher_exact([[count, n - count], [own, own_n - own]], alternative="greater").pvalue)
