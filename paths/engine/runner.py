"""What the engine asks of a model and of a model runner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from paths.engine.batch import ForwardBatch, LayerCache
from paths.engine.host_memory import TransferCounts
from paths.engine.output import StepOutput
from paths.engine.requests import RequestTable
from paths.engine.scheduler import StepPlan
from paths.engine.speculation import Speculation


class ForwardPass(Protocol):
    """What a step runs: the model's, or a draft's."""

    def forward(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Tensor:
        """Hidden states [T, Dm] after the final norm."""


class Model(ForwardPass, Protocol):
    """What runners and the engine need of a model.

    `caches` are those of all layers everywhere: the main ones, behind them those of the MTP layers.
    """

    hadamard: bool  # whether the indexer's vectors are rotated

    def logits(self, hidden: Tensor) -> Tensor:
        """float32 [N, V] from hidden [N, Dm]; the caller may write into it."""

    def draft(
        self, batch: ForwardBatch, hidden: Tensor, caches: Sequence[LayerCache], *, step: int = 0
    ) -> Tensor:
        """States [N, Dm] of draft `step`, normed once: for `draft_logits`, and the next draft's `hidden`.

        The N rows are those of `batch.queries`; of all others only the keys are written.

        A row of position i has input_ids t(i + 1), positions i, slot and length of position i, and predicts
        t(i + 2). hidden [T, Dm]: for step 0 what `forward` returned for the row, later the row's state of the
        draft before. Draft `step` is made by MTP layer `step` mod their number, in that layer's cache.
        Where `config.reuses_selection(step)`, `batch.topk_indices` must hold on entry the row that draft 0
        left for the last token of the row's request, and is left as it is; else that of `batch.queries` is
        written. Only with weights that were loaded for drafts.
        """

    def draft_logits(self, hidden: Tensor, *, step: int = 0) -> Tensor:
        """float32 [N, V] of the tokens that states [N, Dm] of draft `step` predict; may be written into."""

    def compile_mode(self) -> str:
        """How the forward passes so far were executed: "none", or the compiler and how it was split."""

    def compile_count(self) -> int:
        """Compilations so far."""


class Runner(Protocol):
    """Turns plans into tokens. State between steps is the runner's own."""

    name: str
    speculation: Speculation
    asynchronous: bool  # whether the next step can be launched before this one's tokens are read
    transfers: TransferCounts

    def nan_rows(self) -> int:
        """Sampled rows so far whose logits held a NaN. Waits for the device."""

    def execute(self, plan: StepPlan, table: RequestTable) -> StepOutput:
        """Apply released, admitted and grown slots, then launch the step. The table is read, never written:
        it holds the lengths from before this step.
        """
