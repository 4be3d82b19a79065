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
    the last one of each request; later drafts run on one row per request. Behind a part of a prompt
    draft 0 has PIECEWISE graphs for one request: for any number they would hold a query for each row of it.
    Raises UserError for a configuration that the model cannot serve.
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
        self._others: list[GraphedForward] = []
        self._caches = caches
        self._first_inputs = FirstDraftInputs(inputs)
        self._keys = [(step % layers, model_config.reuses_selection(step)) for step in range(mtp)]
        others = {key: step for step, key in reversed(list(enumerate(self._keys))) if step > 0}
        self._steps = [0, *sorted(others.values())]  # the first of each different pass
        self._first, self._later = self._made_of(DraftPass)

    def _made_of(
        self, kind: type[DraftPass]
    ) -> tuple[GraphedForward, dict[tuple[int, bool], GraphedForward]]:
        """Draft 0, and each different later one."""
        first = kind(self.model, self._first_inputs, step=0)
        later = {
            self._keys[step]: self._graphed(
                kind(self.model, self.inputs, step=step), self.inputs, _one_row(self._config)
            )
            for step in self._steps[1:]
        }
        return self._graphed(first, self._first_inputs, _first(self._config, self._mtp)), later

    @property
    def passes(self) -> list[GraphedForward]:
        """Each different forward pass of drafts once."""
        joined = [part for part in (self._joined.later, self._joined.whole) if part is not None]
        return [self._first, *self._later.values(), *joined]

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
        """Make every pass a `GreedyDraftPass`, to be called before `capture`."""
        self._first, self._later = self._made_of(GreedyDraftPass)

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
        for step in self._steps:
            draft = DraftPass(self.model, self._first_inputs if step == 0 else self.inputs, step=step)
            yield step, draft.forward(batch if step > 0 else half_wanted(batch), self._caches)

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
        of `inputs.topk_indices`. Of later drafts `[num_tokens, Dm]`. Reads `inputs.hidden` too. After
        `follow_greedy`: what a `GreedyDraftPass` returns. The tensor is valid until the next call.
        """
        return (self._later[self._keys[step]] if step else self._first).run(shape)


def _first(config: GraphConfig, mtp: int) -> GraphConfig:
    """Of draft 0. Where decode steps have PIECEWISE graphs, these fit any number of requests."""
    config = config.with_drafts(mtp)
    if config.decode is GraphMode.FULL:
        return replace(config, piecewise_reqs=1)
    return replace(config, mixed=GraphMode.NONE)


def _one_row(config: GraphConfig) -> GraphConfig:
    """Of drafts that never see a chunk of a prompt."""
    mixed = GraphMode.NONE if config.decode is GraphMode.FULL else config.mixed
    return replace(config, query_lens=(1,), mixed=mixed)
