"""How an engine drafts, and how it judges drafts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paths.api import UserError
from paths.engine.sampler import SamplingInputs, sample
from paths.kernels.registry import Kernels
from paths.kernels.sample.noise import DRAFT_STREAM, accept_uniform
from paths.kernels.sample.torch_impl import scale

FORCED_STREAM = 2 * DRAFT_STREAM  # added to the position of a draft that is accepted by chance


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """mtp: drafts after each step, 0 for none. forced_al: accept by chance up to this mean length."""

    mtp: int = 0
    forced_al: float | None = None

    def check(self) -> None:
        """Raises UserError for values that make no sense."""
        if self.mtp < 0:
            raise UserError(f"mtp={self.mtp}: must be 0 (no drafts) or the number of drafts after each step")
        if self.forced_al is None:
            return
        if self.mtp == 0:
            raise UserError(
                f"mtp_forced_al={self.forced_al}: mtp=0 drafts nothing to accept; set mtp or drop the key"
            )
        if not 1 <= self.forced_al <= self.mtp + 1:
            raise UserError(
                f"mtp_forced_al={self.forced_al}: must lie in 1 … {self.mtp + 1} with mtp={self.mtp}: "
                "accepted drafts and the token behind them"
            )

    @property
    def forced_rate(self) -> float | None:
        """Chance that a draft is accepted whose predecessors were: 1 + c + c² + … + c^mtp = forced_al."""
        if self.forced_al is None:
            return None
        from scipy.optimize import brentq  # half a second, for forced lengths alone

        forced_al = self.forced_al
        return float(brentq(lambda rate: sum(rate**n for n in range(self.mtp + 1)) - forced_al, 0.0, 1.0))


@dataclass(frozen=True, kw_only=True)
class DraftRows:
    """The drafts that a step verifies: N requests with L logits rows, in the order of the batch."""

    ids: Tensor  # [L] int64: the draft that a logits row judges; any value in the last row of a request
    starts: Tensor  # [N + 1] int32: first logits row of each request
    probs: Tensor | None  # [S, K, V] float32 by entry of the sampling parameters; None: all were greedy


class Verifier:
    """Judges drafts: exactly by rejection sampling, or by chance where a length is forced."""

    def __init__(self, speculation: Speculation, kernels: Kernels) -> None:
        self._mtp = speculation.mtp
        self._rate = speculation.forced_rate
        self._kernels = kernels

    @property
    def needs_seeds(self) -> bool:
        """Whether greedy requests need theirs, too."""
        return self._rate is not None

    def verify(self, logits: Tensor, inputs: SamplingInputs, drafts: DraftRows) -> tuple[Tensor, Tensor]:
        """Tokens int64 `[N, 1 + mtp]`, −1 behind the last, and how many int32 `[N]`; `inputs.rows` is given.

        See the op `rejection`: every token is distributed as plain sampling would draw it. The noise of
        acceptance and of replacement belongs to seed and position, so a request yields the same tokens in any
        batch that verifies as many drafts of it in each step.
        """
        assert inputs.rows is not None, "logits rows of one request share an entry"
        if self._rate is not None:
            return self._by_chance(logits, inputs, drafts, self._rate)
        return self._kernels.rejection(
            logits,
            drafts.ids,
            None if inputs.all_greedy else drafts.probs,
            row_starts=drafts.starts,
            rows=inputs.rows,
            temperature=inputs.temperature,
            top_k=inputs.top_k,
            top_p=inputs.top_p,
            seeds=inputs.seeds,
            positions=inputs.positions,
            max_drafts=self._mtp,
            all_greedy=inputs.all_greedy,
        )

    def _by_chance(
        self, logits: Tensor, inputs: SamplingInputs, drafts: DraftRows, rate: float
    ) -> tuple[Tensor, Tensor]:
        """Accepts each draft with probability `rate` until one is rejected; then a token of the target."""
        assert inputs.rows is not None, "checked by the caller"
        sampled = sample(logits, inputs, self._kernels.sample)
        first, end = drafts.starts[:-1].long()[:, None], drafts.starts[1:].long()[:, None]
        step = torch.arange(self._mtp + 1, device=logits.device)
        at = (first + step).minimum(end - 1)  # steps past a request's end repeat its last row
        seeds = inputs.seeds[inputs.rows.long()]
        chosen = accept_uniform(seeds=seeds, positions=inputs.positions + FORCED_STREAM) < rate
        accepted = (chosen[at] & (step < end - first - 1)).long().cumprod(1).sum(1, keepdim=True)
        tokens = torch.where(step < accepted, drafts.ids[at], -1)
        tokens.scatter_(1, accepted, sampled[at.gather(1, accepted)])
        return tokens, accepted[:, 0].int() + 1


def draft_token(logits: Tensor, inputs: SamplingInputs, kernels: Kernels) -> tuple[Tensor, Tensor | None]:
    """A draft of each row, int64 `[N]`, and the distribution float32 `[N, V]` that it was drawn from.

    inputs: of the requests, with top_k and top_p off; positions `[N]` of the drafts. Greedy requests get the
    most likely token, and a distribution that means nothing. Where all are greedy there is none.
    """
    if inputs.all_greedy:
        return logits.argmax(dim=-1), None
    temperature = inputs.temperature if inputs.rows is None else inputs.temperature[inputs.rows.long()]
    probs = torch.softmax(scale(logits, temperature), dim=-1)
    drawn = SamplingInputs(
        temperature=inputs.temperature,
        top_k=torch.zeros_like(inputs.top_k),
        top_p=torch.ones_like(inputs.top_p),
        seeds=inputs.seeds,
        positions=inputs.positions + DRAFT_STREAM,
        all_greedy=False,
        rows=inputs.rows,
    )
    return sample(logits, drawn, kernels.sample), probs
