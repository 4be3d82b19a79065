"""Drafts of runner V2: inputs prepared on the device, from counts that the host has not read."""

from __future__ import annotations

import torch
from torch import Tensor

from paths.dsa_mrv2.input_buffers import StepRows
from paths.dsa_mrv2.states import RequestStates
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
        device = step_inputs.device
        self._tokens = torch.arange(step_inputs.max_tokens, device=device)
        self._rows = torch.arange(step_inputs.max_reqs, dtype=torch.int32, device=device)
        self._steps = torch.arange(1, self._mtp, device=device)[:, None]

    @torch.inference_mode()
    def propose(
        self, plan: StepPlan, table: RequestTable, rows: StepRows, hidden: Tensor, counts: Tensor
    ) -> None:
        """Draft behind the tokens that the states got from this step; hidden `[T, Dm]` of its rows.

        counts `[R]`: tokens that each request got. Rows of rejected drafts stay in place as padding, so that
        draft 0 has the shape of the step.
        """
        inputs, count = self._inputs, plan.num_samples
        last = self._prepare_first(plan, rows, counts)
        inputs.hidden[: len(hidden)].copy_(hidden)
        states, _ = self._drafts.run(0, plan.shape)
        if count == 0:
            return
        slots = rows.slots[:count]
        position = inputs.positions[last]
        states = self._kernels.gather_rows(states, last)
        longest = plan.shape.max_length
        greedy = not table.temperature[plan.slots[:count]].any()
        tokens = [self._draft(0, states, slots, position, all_greedy=greedy)]
        if self._drafts.reuses_selection:
            inputs.topk_indices[:count].copy_(inputs.topk_indices[last])
        if self._mtp > 1:
            inputs.req_rows[:count].copy_(self._rows[:count])
            behind = position + self._steps
            live = behind < self._states.limits[slots]
            positions, lengths = behind.where(live, 0), (behind + 1).where(live, 0)
        for step in range(1, self._mtp):
            self._prepare_later(positions[step - 1], lengths[step - 1])
            inputs.input_ids[:count].copy_(tokens[-1])
            inputs.hidden[:count].copy_(states)
            shape = BatchShape(
                num_tokens=count,
                num_reqs=count,
                query_len=1,
                max_length=min(longest + step, table.max_model_len),
            )
            states, _ = self._drafts.run(step, shape)
            tokens.append(self._draft(step, states, slots, position + step, all_greedy=greedy))
        self._states.draft_tokens[slots] = torch.stack(tokens, dim=1)

    def _prepare_first(self, plan: StepPlan, rows: StepRows, counts: Tensor) -> Tensor:
        """Ids shifted by one against the step's; of each of the first N requests, its last live row `[N]`."""
        inputs, states, count = self._inputs, self._states, plan.num_samples
        tokens, total = self._tokens[: plan.total_tokens], plan.total_tokens
        req, positions = inputs.req_rows[:total], inputs.positions[:total]
        ends = rows.query_start[1:]
        if plan.num_drafts is None:
            inputs.input_ids[:total].copy_(states.token_ids[rows.slots[req], positions + 1])
            return ends[:count].long() - 1
        wanted = rows.logits_start.diff()
        ends = ends - torch.where(wanted > 0, wanted - counts, 0)
        live = tokens < ends[req]
        # behind the last token that is known there is nothing: rows of rejected drafts are padding
        following = torch.where(live, positions + 1, 0)
        inputs.input_ids[:total].copy_(states.token_ids[rows.slots[req], following])
        inputs.lengths[:total].copy_(following)
        inputs.slot_mapping[:total].masked_fill_(~live, -1)
        return ends[:count].long() - 1

    def _prepare_later(self, position: Tensor, length: Tensor) -> None:
        """One row per request; those past their limit are padding, and what they draft is not used."""
        inputs, count = self._inputs, len(position)
        positions, lengths = inputs.positions[:count], inputs.lengths[:count]
        positions.copy_(position)
        lengths.copy_(length)
        self._kernels.slot_mapping(
            positions,
            inputs.req_rows[:count],
            lengths,
            inputs.block_table[:count],
            out=inputs.slot_mapping[:count],
        )

    def _draft(
        self, step: int, states: Tensor, slots: Tensor, position: Tensor, *, all_greedy: bool
    ) -> Tensor:
        """Draft `step` int64 `[N]` of the rows at `position`; keeps what it was drawn from."""
        kept = self._states
        logits = self._model.draft_logits(states, step=step)
        inputs = SamplingInputs(
            temperature=kept.temperature,
            top_k=kept.top_k,
            top_p=kept.top_p,
            seeds=kept.seeds,
            positions=position + 2,
            all_greedy=all_greedy,
            rows=slots,
        )
        token, probs = draft_token(logits, inputs, self._kernels)
        if probs is not None:
            if kept.draft_probs is None:
                kept.draft_probs = probs.new_zeros(*kept.draft_tokens.shape, probs.shape[1])
            kept.draft_probs[slots, step] = probs
        return token
