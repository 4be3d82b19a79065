"""The end of a step that V1 and V2 share: logits, masks, sampled tokens, and log-probs where asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from paths.api import TokenLogprobs
from paths.engine.logprobs import ScoreReader, token_logprobs
from paths.engine.requests import RequestState, RequestTable
from paths.engine.runner import Model
from paths.engine.sampler import SamplingInputs
from paths.engine.scheduler import StepPlan
from paths.engine.speculation import DraftRows

IntArray = npt.NDArray[np.int32]


@dataclass(kw_only=True)
class PendingScores:
    """Log-probs of a step, computed when its tokens are read. Empty in most steps."""

    reader: ScoreReader
    prompts: list[tuple[RequestState, Tensor, list[int]]] = field(default_factory=list)  # logits, targets
    outputs: dict[int, tuple[RequestState, Tensor]] = field(default_factory=dict)  # row → logits [1, V]

    def __bool__(self) -> bool:
        return bool(self.prompts or self.outputs)

    def resolve(self, tokens: IntArray) -> dict[int, TokenLogprobs]:
        """Log-probs of sampled tokens `[N]` by row; those of prompts go to their requests."""
        for state, logits, targets in self.prompts:
            wanted = state.params.prompt_logprobs
            assert wanted is not None
            state.prompt_logprobs.extend(token_logprobs(logits, targets, wanted, self.reader))
        scores = {}
        for row, (state, logits) in self.outputs.items():
            wanted = state.params.logprobs
            assert wanted is not None
            scores[row] = token_logprobs(logits, [int(tokens[row])], wanted, self.reader)[0]
        return scores


@dataclass(frozen=True, kw_only=True)
class ForbiddenTokens:
    """Entries of the logits that may not be sampled: stop tokens of rows below their min_tokens."""

    rows: IntArray  # [M]
    tokens: IntArray  # [M]

    def __bool__(self) -> bool:
        return len(self.rows) > 0


_NO_ROWS = np.zeros(0, dtype=np.int32)
NOTHING_FORBIDDEN = ForbiddenTokens(rows=_NO_ROWS, tokens=_NO_ROWS)


class HeadOps(Protocol):
    """How a runner carries out the steps of the head."""

    def pick(self, hidden: Tensor, rows: IntArray) -> Tensor:
        """These rows of hidden `[T, Dm]`."""

    def count_nan_rows(self, logits: Tensor, total: Tensor) -> None:
        """Adds to total int64 `[1]`."""

    def forbid(self, logits: Tensor, forbidden: ForbiddenTokens) -> None:
        """These entries of float32 `[N, V]` become −inf, in place."""

    def sample(self, logits: Tensor, inputs: SamplingInputs) -> Tensor:
        """Token ids int64 `[N]`."""

    def verify(self, logits: Tensor, inputs: SamplingInputs, drafts: DraftRows) -> tuple[Tensor, Tensor]:
        """Tokens int64 `[N, 1 + mtp]` and how many int32 `[N]`, as `Verifier.verify`."""

    def force(self, tokens: Tensor, rows: list[int], values: list[int]) -> None:
        """tokens[rows] = values, in place."""


class SamplingHead:
    """Logits of a step's last rows, and what is made of them. Nothing here waits for the device."""

    def __init__(
        self,
        model: Model,
        ops: HeadOps,
        *,
        eos_token_ids: Sequence[int],
        device: torch.device,
        reader: ScoreReader,
    ) -> None:
        self._model = model
        self._ops = ops
        self._reader = reader
        self._eos_token_ids = list(eos_token_ids)
        self._nan_rows = torch.zeros(1, dtype=torch.int64, device=device)

    def forbidden(self, plan: StepPlan, table: RequestTable) -> ForbiddenTokens:
        """By logits row; the table is as it was before this step."""
        slots = plan.slots[: plan.num_samples]
        total = table.total_len[slots]
        if all((total >= table.min_total[slots]).tolist()):
            return NOTHING_FORBIDDEN
        if plan.num_drafts is not None:  # behind an accepted draft the request is that much longer
            counts = plan.num_logits
            first = np.cumsum(counts, dtype=np.int32) - counts
            slots = np.repeat(slots, counts)
            total = np.repeat(total - first, counts) + np.arange(len(slots), dtype=np.int32)
        rows: list[int] = []
        tokens: list[int] = []
        for row in np.flatnonzero(total < table.min_total[slots]).tolist():
            slot = int(slots[row])
            stops = set(table.state(slot).params.stop_token_ids)
            if not table.ignore_eos[slot]:
                stops.update(self._eos_token_ids)
            rows += [row] * len(stops)
            tokens += sorted(stops)
        return ForbiddenTokens(rows=np.asarray(rows, np.int32), tokens=np.asarray(tokens, np.int32))

    def counted_logits(self, hidden: Tensor) -> Tensor:
        """float32 `[L, V]` of the rows hidden `[L, Dm]`; those with a NaN are counted."""
        logits = self._model.logits(hidden)
        self._ops.count_nan_rows(logits, self._nan_rows)
        return logits

    @torch.inference_mode()  # models may give inference tensors, which are written in place here
    def run(
        self,
        hidden: Tensor,
        plan: StepPlan,
        table: RequestTable,
        inputs: SamplingInputs,
        forbidden: ForbiddenTokens,
    ) -> tuple[Tensor, PendingScores]:
        """Sampled tokens int64 `[N]` of the plan's first N rows, from hidden `[T, Dm]`."""
        scores = PendingScores(reader=self._reader)
        logits = self._logits(hidden, plan, table, forbidden, scores)
        if len(logits) == 0:
            return torch.empty(0, dtype=torch.int64, device=hidden.device), scores
        tokens = self._ops.sample(logits, inputs)
        self._force(tokens, plan, table)
        return tokens, scores

    @torch.inference_mode()
    def verify(
        self,
        hidden: Tensor,
        plan: StepPlan,
        table: RequestTable,
        inputs: SamplingInputs,
        forbidden: ForbiddenTokens,
        drafts: DraftRows,
    ) -> tuple[Tensor, Tensor, PendingScores]:
        """As `run`, of a step with drafts: tokens int64 `[N, 1 + mtp]` and how many int32 `[N]`."""
        scores = PendingScores(reader=self._reader)
        logits = self._logits(hidden, plan, table, forbidden, scores)
        tokens, counts = self._ops.verify(logits, inputs, drafts)
        self._force(tokens, plan, table)  # of requests without drafts
        return tokens, counts, scores

    def _logits(
        self,
        hidden: Tensor,
        plan: StepPlan,
        table: RequestTable,
        forbidden: ForbiddenTokens,
        scores: PendingScores,
    ) -> Tensor:
        """float32 `[L, V]`, masked; adds to `scores` what requests asked for."""
        special = _special(plan, table)
        if special:
            ends = np.cumsum(plan.num_tokens, dtype=np.int32)
            for row in special:
                self._add_prompt(scores, hidden, plan, table, row, int(ends[row]))
        wanted = plan.num_samples if plan.num_drafts is None else sum(plan.num_logits.tolist())
        if wanted == 0:
            return hidden.new_empty(0, 0)
        if wanted != len(hidden):
            hidden = self._ops.pick(hidden, logits_rows(plan, np.cumsum(plan.num_tokens, dtype=np.int32)))
        logits = self.counted_logits(hidden)
        if special:
            self._keep_scored(scores, logits, plan, table, special)
        if forbidden:
            self._ops.forbid(logits, forbidden)
        return logits

    def _keep_scored(
        self,
        scores: PendingScores,
        logits: Tensor,
        plan: StepPlan,
        table: RequestTable,
        special: list[int],
    ) -> None:
        """Logits before masks and temperature of requests that asked for log-probs: one row each."""
        ends = np.cumsum(plan.num_logits)
        for row in special:
            if row >= plan.num_samples:
                continue
            state = table.state(int(plan.slots[row]))
            if state.params.logprobs is not None:
                scores.outputs[row] = (state, logits[ends[row] - 1 : ends[row]].clone())

    def _force(self, tokens: Tensor, plan: StepPlan, table: RequestTable) -> None:
        """tokens `[N]`, or `[N, 1 + mtp]` of which the first are meant."""
        rows, values = _forced(plan, table)
        if rows:
            self._ops.force(tokens if tokens.dim() == 1 else tokens[:, 0], rows, values)

    def nan_rows(self) -> int:
        """Sampled rows so far whose logits held a NaN: their tokens mean nothing.

        Waits for every step in flight: the count lives on the device. Not for use inside a step.
        """
        return int(self._nan_rows)

    def _add_prompt(
        self,
        scores: PendingScores,
        hidden: Tensor,
        plan: StepPlan,
        table: RequestTable,
        row: int,
        end: int,
    ) -> None:
        """Logits of the prompt tokens that this chunk's rows predict."""
        slot, start, count = int(plan.slots[row]), int(plan.start[row]), int(plan.num_tokens[row])
        state = table.state(slot)
        # the row at position p predicts token p + 1; after a preemption some are scored already
        first = max(start, state.prompt_scored)
        last = min(start + count, int(table.prompt_len[slot]) - 1)
        if state.params.prompt_logprobs is None or first >= last:
            return
        offset = end - count - start
        logits = self._model.logits(hidden[offset + first : offset + last])
        targets = table.token_ids[slot, first + 1 : last + 1].tolist()
        scores.prompts.append((state, logits, targets))
        state.prompt_scored = last


def logits_rows(plan: StepPlan, ends: IntArray) -> IntArray:
    """Token rows `[L]` whose logits are wanted; ends `[R]`: the row behind each request's last."""
    if plan.num_drafts is None:
        return ends[: plan.num_samples] - 1
    counts = plan.num_logits
    first = np.cumsum(counts, dtype=np.int32) - counts
    return np.repeat(ends[: plan.num_samples] - counts - first, counts) + np.arange(
        int(counts.sum()), dtype=np.int32
    )


def _special(plan: StepPlan, table: RequestTable) -> list[int]:
    """Rows whose requests need the host."""
    return [row for row, special in enumerate(table.needs_host[plan.slots].tolist()) if special]


def _forced(plan: StepPlan, table: RequestTable) -> tuple[list[int], list[int]]:
    """Logits rows whose next token is given, and these tokens."""
    rows: list[int] = []
    values: list[int] = []
    for row in _special(plan, table):
        if row >= plan.num_samples:
            continue
        slot = int(plan.slots[row])
        forced = table.state(slot).request.forced_ids
        if forced is not None:
            rows.append(row)
            values.append(int(forced[int(table.total_len[slot] - table.prompt_len[slot])]))
    return rows, values
