"""Checks of every replay, for debugging: they cost copies and waits."""

from __future__ import annotations

import torch
from torch import Tensor

from paths.engine.static_inputs import StaticInputs
from paths.graphs.capture import CapturedGraph
from paths.graphs.shape import BatchShape


class ReplayChecks:
    """Addresses are those of the capture, padding rows hold NaN, and no live row is touched by them.

    A caller gets a copy of the hidden states, which turns into NaN at the next step: whoever still reads it
    then is late, and shows.
    """

    def __init__(self, inputs: StaticInputs, output: Tensor) -> None:
        self._inputs = inputs
        self._output = output
        self._addresses = self._current()
        self._handed_out: Tensor | None = None

    def before(self, graph: CapturedGraph, shape: BatchShape) -> None:
        """Raises RuntimeError for a static buffer that has moved."""
        self.expire()
        moved = [name for name, address in self._current().items() if address != self._addresses[name]]
        if moved:
            raise RuntimeError(
                f"static buffers {', '.join(moved)} have moved since the capture: a replay would read the "
                "old storage; write into them, never rebind them"
            )
        poison(self._output)
        # where both sizes are equal, rows between the live requests and the live tokens are left alone
        queries = graph.context.batch.queries.num_tokens
        live = {queries: self._inputs.num_outputs(shape), graph.descriptor.num_tokens: shape.num_tokens}
        for buffer in graph.replay.buffers:
            if buffer.dim() > 0 and buffer.shape[0] in live:
                poison(buffer[live[buffer.shape[0]] :])

    def after(self, hidden: Tensor) -> None:
        """Raises RuntimeError where a live row of the states `[N, Dm]` has become NaN."""
        bad = hidden.isnan().any(dim=-1)
        if bool(bad.any()):
            rows = bad.nonzero().flatten().tolist()
            raise RuntimeError(
                f"hidden states of the live rows {rows} hold NaN after a replay of {len(hidden)} rows: "
                "padding reached them, or the caches hold NaN"
            )

    def hand_out(self, hidden: Tensor) -> Tensor:
        """A copy that the next step invalidates."""
        self._handed_out = hidden.clone()
        return self._handed_out

    def expire(self) -> None:
        """The next step begins: what was handed out is void."""
        if self._handed_out is not None:
            poison(self._handed_out)
            self._handed_out = None

    def _current(self) -> dict[str, int]:
        return {name: tensor.data_ptr() for name, tensor in self._inputs.tensors().items()}


def poison(tensor: Tensor) -> None:
    """NaN in every float; other types are left alone. float8 has no fill, and all ones are its NaN."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return
    if tensor.element_size() == 1:
        tensor.view(torch.uint8).fill_(0xFF)
    else:
        tensor.fill_(torch.nan)
