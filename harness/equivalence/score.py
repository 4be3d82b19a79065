"""What a record says of equivalence: one arm's answers against the reference's."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

NOT_NUMBERS = "log-probabilities are not numbers"  # a reason that is a fault of the arm


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Greedy(_Model):
    """Answers to the same prompts, token by token."""

    prompts: int
    identical: int
    first_div: list[int | None]  # per prompt: index of the first token that differs, None: identical
    first_div_median: float | None  # of those that differ
    near_ties: int | None  # of these, where the reference's best two were closer than `near_tie`; or unknown
    near_tie: float  # in log-probability
    margin_max: float | None  # largest lead of the reference's best token where an answer left it
    empty: int  # answers of this arm without a token

    @property
    def share_identical(self) -> float:
        return self.identical / self.prompts


class Forced(_Model):
    """The reference's tokens fed through decode and scored: no divergence hides what comes after it."""

    positions: int
    top1_agree: float  # share of positions at which both have the same best token
    clear_positions: int  # where the reference's best token leads by `Greedy.near_tie` or more
    clear_agree: float | None  # top1_agree over these; None without any
    mean_abs_dlogprob: float  # |Δ log p| of the given token
    max_abs_dlogprob: float
    mean_kl: float  # KL(reference ‖ arm) over the reference's best `alternatives` tokens and the rest as one
    max_kl: float
    alternatives: int


class Level(_Model):
    """One concurrency."""

    concurrency: int
    greedy: Greedy
    forced: Forced | None = None
    reason: str | None = None  # why `forced` is absent


class Equivalence(_Model):
    """One arm against the reference; of the reference itself, a second pass against its first."""

    arm: str
    reference: str
    against: Literal["itself", "reference"]
    differs_in: list[str]  # keys in which the arm differs from the reference
    levels: list[Level] = []
    reason: str | None = None  # why there are no levels
