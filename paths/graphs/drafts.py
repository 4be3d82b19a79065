"""The drafts after a step, each replayed where a graph fits and eager where none does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from paths.api import UserError
from paths.engine.batch import ForwardBatch, LayerCache, half_wanted
from paths.engine.runner import ForwardPass
from paths.engine.static_inputs import DraftInputs, FirstDraftInputs, StaticInputs
from paths.graphs.backend import GraphBackend
from paths.graphs.capture import CaptureReport
from paths.graphs.config import GraphConfig, GraphMode
from paths.graphs.draft_chain import Advance, DraftChain
from paths.graphs.draft_pass import DraftModel, DraftPass, GreedyDraftPass
from paths.graphs.forward import GraphedForward
from paths.graphs.joined_drafts import JoinedDrafts
from paths.graphs.shape import BatchShape
from paths.models.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class GreedyDrafts:
    """Passes over several greedy drafts, each the most likely token."""

    # from the states of draft 0 in `inputs.hidden`, one row per request
    later: GraphedForward | None = None
    # from the states of a step in which every request verifies `mtp` drafts, given the longest length of the
    # last draft; None with PIECEWISE graphs of decode steps, which take each draft by itself
    whole: GraphedForward | None = None


class GraphedDrafts:
    """Drafts 0 to mtp − 1. Later ones of one MTP layer that select keys the same way are one forward pass.

    Draft 0 runs on all rows of the step, query_len 1 + mtp where it is uniform, and returns the states of
    the last one of each request; later drafts run on one row per request. Steps with a part of a prompt draft
    without a graph: it would hold a query for every row of the prompt. Raises UserError for a configuration
    that the model cannot serve.
    """

    def __init__(
        self,
        *,
        model: Any,
        model_config: ModelConfig,
        mtp: int,
        caches: Sequence[LayerCache],
        inputs: DraftInputs,
        config: GraphConfig,
        backend: GraphBackend | None = None,
    ) -> None:
        if not isinstance(model, DraftModel):
            raise UserError(
                f"mtp={mtp}: {type(model).__name__} cannot draft; set mtp=0 or choose another path"
            )
        layers = model_config.mtp_layers(mtp)
        self.inputs = inputs
        self.model: DraftModel = model
        self._mtp = mtp
        self._config = config
        self._backend = backend
        self._joined = GreedyDrafts()
        self._greedy: dict[tuple[int, bool] | None, GraphedForward] = {}  # of draft 0 as None
        self._others: list[GraphedForward] = []
        self._caches = caches
        self._first_inputs = first = FirstDraftInputs(inputs)
        self._eager = [DraftPass(model, first, step=0)]
        self._first_config = replace(config.with_drafts(mtp), mixed=GraphMode.NONE)
        self._first = self._graphed(self._eager[0], first, self._first_config)
        self._keys = [(step % layers, model_config.reuses_selection(step)) for step in range(mtp)]
        self._later: dict[tuple[int, bool], GraphedForward] = {}
        for step, key in enumerate(self._keys):
            if step > 0 and key not in self._later:
                draft = DraftPass(model, inputs, step=step)
                self._eager.append(draft)
                self._later[key] = self._graphed(draft, inputs, _one_row(config))

    @property
    def passes(self) -> list[GraphedForward]:
        """Each different forward pass of drafts once."""
        joined = [part for part in (self._joined.later, self._joined.whole) if part is not None]
        return [self._first, *self._later.values(), *self._greedy.values(), *joined]

    def join_greedy(self, advance: Advance) -> GreedyDrafts:
        """Greedy drafts of a step as one pass, to be called before `capture`.

        advance: keeps the tokens `[N]` of a draft, given its number, and fills the inputs of the next one.
        """
        chain = DraftChain(self.model, self.inputs, mtp=self._mtp, advance=advance)
        config = _one_row(self._config) if self._mtp > 1 else GraphConfig()  # without a pass, no graph
        whole = None
        if self._config.decode is not GraphMode.PIECEWISE:
            joined = JoinedDrafts(self.model, self.inputs, chain)
            whole = self._graphed(joined, self._first_inputs, self._verifying())
        self._joined = GreedyDrafts(later=self._graphed(chain, self.inputs, config), whole=whole)
        return self._joined

    def follow_greedy(self) -> None:
        """Prepare for `run_greedy`, to be called before `capture`."""
        first = GreedyDraftPass(self.model, self._first_inputs, step=0)
        self._greedy[None] = self._graphed(first, self._first_inputs, self._first_config)
        for step, key in enumerate(self._keys):
            if step > 0 and key not in self._greedy:
                draft = GreedyDraftPass(self.model, self.inputs, step=step)
                self._greedy[key] = self._graphed(draft, self.inputs, _one_row(self._config))

    def capture_with(self, model: ForwardPass, inputs: StaticInputs) -> GraphedForward:
        """A pass without break points over steps in which every request verifies `mtp` drafts, captured with
        the drafts but none of them. To be called before `capture`.
        """
        self._others.append(self._graphed(model, inputs, self._verifying()))
        return self._others[-1]

    def _verifying(self) -> GraphConfig:
        """FULL graphs of such steps, where decode steps have FULL graphs."""
        if self._config.decode is not GraphMode.FULL:
            return GraphConfig()
        return replace(self._config, query_lens=(1 + self._mtp,), mixed=GraphMode.NONE)

    def _graphed(self, model: ForwardPass, inputs: StaticInputs, config: GraphConfig) -> GraphedForward:
        return GraphedForward(
            model=model, caches=self._caches, inputs=inputs, config=config, backend=self._backend
        )

    def compile(self, batch: ForwardBatch) -> Iterator[tuple[int, Tensor]]:
        """Run every different pass without a graph, for first calls compile. Yields a step, its states.

        batch: padding rows. Draft 0 is asked for half of them, so that their number is not taken to be that
        of all.
        """
        for draft in self._eager:
            rows = batch if draft.step > 0 else half_wanted(batch)
            yield draft.step, draft.forward(rows, self._caches)

    def capture(self) -> CaptureReport:
        """Capture all, once, before the first step. `breaks` is that of the pass with the most."""
        reports = [forward.capture() for forward in (*self.passes, *self._others)]
        return CaptureReport(
            seconds=sum(report.seconds for report in reports),
            graphs=sum(report.graphs for report in reports),
            memory_bytes=sum(report.memory_bytes for report in reports),
            breaks=max(report.breaks for report in reports),
        )

    def steps_by_mode(self) -> dict[str, int]:
        """Passes so far by graph mode; greedy drafts that are joined are one."""
        return {mode.value: sum(part.counts.steps[mode] for part in self.passes) for mode in GraphMode}

    def run(self, step: int, shape: BatchShape) -> tuple[Tensor, GraphMode]:
        """States of draft `step` for the live rows of the inputs, and how they were made.

        Of draft 0 `[num_reqs, Dm]`, those of `inputs.last_rows`; it leaves their selections in the first rows
        of `inputs.topk_indices`. Of later drafts `[num_tokens, Dm]`. Reads `inputs.hidden` too. The tensor is
        valid until the next call.
        """
        return (self._later[self._keys[step]] if step else self._first).run(shape)

    def run_greedy(self, step: int, shape: BatchShape) -> Tensor:
        """As `run`, and the most likely tokens int64 `[N, 1]`, valid until the next call.

        They and the states are left in the first rows of `inputs.input_ids` and `inputs.hidden`.
        """
        return self._greedy[self._keys[step] if step else None].run(shape)[0]


def _one_row(config: GraphConfig) -> GraphConfig:
    """Of drafts that never see a chunk of a prompt."""
    mixed = GraphMode.NONE if config.decode is GraphMode.FULL else config.mixed
    return replace(config, query_lens=(1,), mixed=mixed)
