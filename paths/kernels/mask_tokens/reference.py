"""The definition of mask_tokens."""

from __future__ import annotations

import math

from torch import Tensor


def mask_tokens(logits: Tensor, rows: Tensor, tokens: Tensor) -> None:
    """Sets logits[rows[i], tokens[i]] to −inf in place; an entry with a negative row or token does nothing.

    logits float32 `[N, V]`, rows and tokens int32 `[M]`.
    """
    for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
        if row >= 0 and token >= 0:
            logits[row, token] = -math.inf
