"""Drafts of runner V2: inputs prepared on the device, from counts that the host has not read."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from paths.dsa_mrv2.input_buffers import StepRows, StepViews
from paths.dsa_mrv2.states import RequestStates
from paths.engine.batch import ForwardBatch
from paths.engine.requests import RequestTable
from paths.engine.runner import Model
from paths.engine.sampler import SamplingInputs
from paths.engine.scheduler import StepPlan
from paths.engine.speculation import draft_token
from paths.engine.static_inputs import StaticInputs
from paths.graphs.drafts import GraphedDrafts
from paths.graphs.shape import BatchShape
from paths.kernels.registry import Kernels


class DrafterV2:
    """Runs the MTP head behind a step; the drafts stay on the device, by slot. Nothing here waits."""

    def __init__(
        self,
        *,
        model: Model,
        drafts: GraphedDrafts,
        kernels: Kernels,
        states: RequestStates,
        step_inputs: StaticInputs,
    ) -> None:
        self._model = model
        self._drafts = drafts
        self._kernels = kernels
        self._states = states
        self._inputs = drafts.inputs
        self._mtp = states.draft_tokens.shape[1]
        self._greedy = drafts.join_greedy(self._advance)
        most, device = step_inputs.max_reqs, step_inputs.device
        # of each request of a step; a graph finds them here
        self._slots = torch.full((most,), -1, dtype=torch.int32, device=device)

    @torch.inference_mode()
    def propose(
        self,
        plan: StepPlan,
        table: RequestTable,
        rows: StepRows,
        views: StepViews,
        hidden: Tensor,
        *,
        counts: Tensor,
        all_greedy: bool,
    ) -> None:
        """Draft behind the tokens that the states got from this step; hidden `[T, Dm]` of its rows.

        counts `[R]`: tokens that each request got. all_greedy: nothing is drawn. Rows of rejected drafts
        stay in place as padding, so that draft 0 has the shape of the step.
        """
        inputs, count = self._inputs, plan.num_samples
        self.prepare_first(rows, views, counts)
        inputs.hidden[: len(hidden)].copy_(hidden)
        states, _ = self._drafts.run(0, plan.shape)
        if count == 0:
            return
        inputs.hidden[:count].copy_(states[:count])
        if all_greedy:
            assert self._greedy.later is not None, "joined above"
            self._greedy.later.run(self._one_row_each(plan, table, self._mtp - 1))
        else:
            self._draw(plan, table)

    @property
    def joins_steps(self) -> bool:
        """Whether `propose_joined` can be had."""
        return self._greedy.whole is not None

    def propose_joined(self, plan: StepPlan, table: RequestTable) -> None:
        """Greedy drafts of a step in which every request verified all of its own, from `inputs.hidden`.

        After `prepare_first`.
        """
        assert self._greedy.whole is not None, "asked before"
        shape = plan.shape
        longest = min(shape.max_length + self._mtp - 1, table.max_model_len)
        self._greedy.whole.run(replace(shape, max_length=longest))

    def _draw(self, plan: StepPlan, table: RequestTable) -> None:
        """Drafts of a step in which some are drawn, from the states of draft 0."""
        count = plan.num_samples
        hidden = self._inputs.hidden[:count]
        for step in range(self._mtp):
            if step > 0:
                states, _ = self._drafts.run(step, self._one_row_each(plan, table, step))
                hidden.copy_(states)
            batch = self._inputs.batch(self._one_row_each(plan, table, step))
            self._advance(self._draft(step, hidden, count), step, batch)

    def _one_row_each(self, plan: StepPlan, table: RequestTable, step: int) -> BatchShape:
        """Of draft `step` > 0."""
        return BatchShape(
            num_tokens=plan.num_samples,
            num_reqs=plan.num_samples,
            query_len=1,
            max_length=min(plan.shape.max_length + step, table.max_model_len),
        )

    def prepare_first(self, rows: StepRows, views: StepViews, counts: Tensor) -> None:
        """The inputs of the step become those of draft 0: ids shifted by one, rejected drafts padding."""
        self._kernels.shift_tokens(
            rows.slots,
            rows.query_start,
            rows.logits_start,
            counts,
            views.positions,
            self._states.token_ids,
            input_ids=views.input_ids,
            lengths=views.lengths,
            slot_mapping=views.slot_mapping,
            draft_slots=self._slots,
            last_rows=self._inputs.last_rows,
            last_positions=self._inputs.last_positions,
            last_lengths=self._inputs.last_lengths,
        )

    def _advance(self, tokens: Tensor, step: int, batch: ForwardBatch) -> None:
        """Keep the tokens of draft `step`, and fill the inputs of the next one.

        One row per request; those past their limit are padding, and what they draft is not used.
        """
        count = len(tokens)
        self._kernels.advance_drafts(
            tokens,
            self._slots[:count],
            self._inputs.last_positions[:count],
            self._states.limits,
            batch.block_table,
            step=step,
            draft_tokens=self._states.draft_tokens,
            input_ids=batch.input_ids,
            positions=batch.positions,
            lengths=batch.lengths,
            slot_mapping=batch.slot_mapping,
            req_rows=batch.req_rows,
        )

    def _draft(self, step: int, states: Tensor, count: int) -> Tensor:
        """Draft `step` int64 `[N]` from states `[N, Dm]`; keeps what it was drawn from."""
        kept, slots = self._states, self._slots[:count]
        logits = self._model.draft_logits(states, step=step)
        inputs = SamplingInputs(
            temperature=kept.temperature,
            top_k=kept.top_k,
            top_p=kept.top_p,
            seeds=kept.seeds,
            positions=self._inputs.last_positions[:count] + (step + 2),
            all_greedy=False,
            rows=slots,
        )
        token, probs = draft_token(logits, inputs, self._kernels)
        assert probs is not None, "some are drawn"
        if kept.draft_probs is None:
            kept.draft_probs = probs.new_zeros(*kept.draft_tokens.shape, probs.shape[1])
        kept.draft_probs[slots, step] = probs
        return token
