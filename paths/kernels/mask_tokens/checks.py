"""Index checks of mask_tokens for `debug.checks=true`."""

from __future__ import annotations

from torch import Tensor

from paths.kernels.guards import refuse_outside


def check_indices(logits: Tensor, rows: Tensor, tokens: Tensor) -> None:
    """Raises ValueError for a row or a token that the logits do not have; −1 is padding."""
    refuse_outside("mask_tokens", "rows", rows, low=-1, high=logits.shape[0])
    refuse_outside("mask_tokens", "tokens", tokens, low=-1, high=logits.shape[1])
