"""What the engine asks of a model runner, and the end of a step that V1 and V2 share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from paths.api import TokenLogprobs
from paths.engine.batch import ForwardBatch, LayerCache
from paths.engine.logprobs import token_logprobs
from paths.engine.requests import RequestTable
from paths.engine.sampler import SamplingInputs, sample
from paths.engine.scheduler import StepPlan
from paths.kernels.registry import Kernels


class Model(Protocol):
    """What runners and the engine need of a model."""

    hadamard: bool  # whether the indexer's vectors are rotated

    def forward(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Tensor:
        """Hidden states [T, Dm] after the final norm."""

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [N, V] from hidden [N, Dm]."""

    def compile_mode(self) -> str:
        """How the forward passes so far were executed: "none", or the compiler and how it was split."""

    def compile_count(self) -> int:
        """Compilations so far."""


@dataclass(kw_only=True)
class StepResult:
    """Tokens of one step, readable on the host."""

    tokens: npt.NDArray[np.int32]  # [R], −1 where the request yields none
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)  # by request row
    graph_mode: str = "NONE"


class Runner(Protocol):
    """Turns plans into tokens. State between steps is the runner's own."""

    name: str

    def nan_rows(self) -> int:
        """See `SamplingHead.nan_rows`."""

    def execute(self, plan: StepPlan, table: RequestTable) -> StepResult:
        """Apply released, admitted and grown slots, then run the step. The table is read, never written."""


class SamplingHead:
    """Logits, sampling and log-probs of a step's last rows."""

    def __init__(self, model: Model, kernels: Kernels, *, eos_token_ids: Sequence[int]) -> None:
        self._model = model
        self._kernels = kernels
        self._eos_token_ids = list(eos_token_ids)
        self._nan_rows: Tensor | None = None  # on the device, so that counting does not wait for it

    def run(
        self,
        hidden: Tensor,
        plan: StepPlan,
        table: RequestTable,
        inputs: SamplingInputs,
        *,
        logits_rows: Tensor | None = None,
    ) -> StepResult:
        """Sample for the requests of `plan.samples` from hidden [T, Dm]; `inputs` has one row for each.

        logits_rows int64 [N]: their last rows, where the device knows them already.
        """
        result = StepResult(tokens=np.full(len(plan.slots), -1, dtype=np.int32))
        ends = np.cumsum(plan.num_tokens)
        special = np.flatnonzero(~table.plain[plan.slots])
        for row in special:
            self._score_prompt(hidden, plan, table, int(row), int(ends[row]))
        rows = np.flatnonzero(plan.samples)
        if len(rows) == 0:
            return result
        if len(rows) == len(hidden):
            picked = hidden
        elif logits_rows is not None:
            picked = self._kernels.gather_rows(hidden, logits_rows)
        else:
            picked = hidden[torch.from_numpy(ends[rows] - 1)]
        logits = self._model.logits(picked)
        raw = logits
        bad = logits.isnan().any(dim=-1).sum()
        self._nan_rows = bad if self._nan_rows is None else self._nan_rows + bad
        early = self._rows_before_min_tokens(plan.slots[rows], table)
        if len(early):
            logits = self._mask_stops(logits, plan.slots[rows], table, early)
        tokens = sample(logits, inputs, self._kernels.sample).cpu().numpy().astype(np.int32)
        for row in special[plan.samples[special]]:
            at = int(np.searchsorted(rows, row))
            self._score_output(raw[at : at + 1], tokens, at, int(row), plan, table, result)
        result.tokens[rows] = tokens
        return result

    def nan_rows(self) -> int:
        """Sampled rows so far whose logits held a NaN: their tokens mean nothing."""
        return 0 if self._nan_rows is None else int(self._nan_rows)

    @staticmethod
    def _rows_before_min_tokens(slots: npt.NDArray[np.int32], table: RequestTable) -> npt.NDArray[np.intp]:
        return np.flatnonzero((table.total_len[slots] < table.min_total[slots]) & ~table.ignore_eos[slots])

    def _mask_stops(
        self,
        logits: Tensor,
        slots: npt.NDArray[np.int32],
        table: RequestTable,
        early: npt.NDArray[np.intp],
    ) -> Tensor:
        """Forbid stop tokens to requests that have not reached min_tokens."""
        logits = logits.clone()
        for row in early:
            stops = self._eos_token_ids + list(table.state(int(slots[row])).params.stop_token_ids)
            logits[int(row), stops] = -torch.inf
        return logits

    def _score_prompt(self, hidden: Tensor, plan: StepPlan, table: RequestTable, row: int, end: int) -> None:
        """Append log-probs of the prompt tokens that this chunk's rows predict."""
        slot, start, count = int(plan.slots[row]), int(plan.start[row]), int(plan.num_tokens[row])
        state = table.state(slot)
        wanted = state.params.prompt_logprobs
        prompt_len = int(table.prompt_len[slot])
        # the row at position p predicts token p + 1; after a preemption some are scored already
        first = max(start, state.prompt_scored)
        last = min(start + count, prompt_len - 1)
        if wanted is None or first >= last:
            return
        offset = end - count - start
        logits = self._model.logits(hidden[offset + first : offset + last])
        targets = table.token_ids[slot, first + 1 : last + 1].tolist()
        state.prompt_logprobs.extend(token_logprobs(logits, targets, wanted))
        state.prompt_scored = last

    @staticmethod
    def _score_output(
        logits: Tensor,
        tokens: npt.NDArray[np.int32],
        at: int,
        row: int,
        plan: StepPlan,
        table: RequestTable,
        result: StepResult,
    ) -> None:
        slot = int(plan.slots[row])
        state = table.state(slot)
        forced = state.request.forced_ids
        if forced is not None:
            tokens[at] = forced[int(table.total_len[slot] - table.prompt_len[slot])]
        if state.params.logprobs is not None:
            result.logprobs[row] = token_logprobs(logits, [int(tokens[at])], state.params.logprobs)[0]
