"""Log-probabilities that requests ask for. Only rows of those requests pass through here."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from paths.api import WHOLE_VOCABULARY, TokenLogprobs
from paths.engine.host_memory import TransferCounts


class ScoreReader:
    """Copies between scores and the host, each counted; a copy to the host waits for the device.

    inside_step: whether these waits are the step's own; those of a step that is already over are part of
    reading its output, which its reader counts.
    """

    def __init__(self, counts: TransferCounts, *, inside_step: bool) -> None:
        self._counts = counts
        self._inside_step = inside_step

    def send(self, values: Sequence[int], device: torch.device) -> Tensor:
        """int64 on the device, from memory that is not pinned."""
        self._counts.host_device_copies += 1
        self._counts.blocking_waits += self._inside_step and device.type != "cpu"
        return torch.as_tensor(values, dtype=torch.int64, device=device)

    def read(self, tensor: Tensor) -> np.ndarray:
        """Values on the host."""
        self._counts.host_device_copies += 1
        self._counts.blocking_waits += self._inside_step
        return tensor.cpu().numpy() if tensor.device.type != "cpu" else tensor.numpy()


def token_logprobs(
    logits: Tensor, token_ids: Sequence[int], alternatives: int, reader: ScoreReader
) -> list[TokenLogprobs]:
    """One TokenLogprobs per row of float32 logits [N, V], before temperature and masks.

    `alternatives` −1 returns the whole vocabulary in id order, n the n best (equal values by id).
    """
    scores = torch.log_softmax(logits.float(), dim=-1)
    chosen = scores.gather(1, reader.send(token_ids, logits.device)[:, None])
    if alternatives == WHOLE_VOCABULARY:
        top_ids = np.broadcast_to(np.arange(logits.shape[1], dtype=np.int32), logits.shape)
        top = reader.read(scores)
    else:
        ordered, order = scores.sort(dim=-1, descending=True, stable=True)
        top_ids = reader.read(order[:, :alternatives].int())
        top = reader.read(ordered[:, :alternatives])
    values = reader.read(chosen[:, 0]).tolist()
    return [
        TokenLogprobs(
            token_id=int(token),
            logprob=values[row],
            top_ids=top_ids[row].copy(),
            top_logprobs=top[row].copy(),
        )
        for row, token in enumerate(token_ids)
    ]
