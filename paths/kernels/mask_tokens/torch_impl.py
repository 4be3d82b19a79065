"""mask_tokens for any device."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def mask_tokens(logits: Tensor, rows: Tensor, tokens: Tensor) -> None:
    """logits float32 `[N, V]`, rows and tokens int32 `[M]`; logits[rows[i], tokens[i]] become −inf."""
    if rows.numel() == 0 or logits.numel() == 0:
        return
    live = (rows >= 0) & (tokens >= 0)
    row, token = torch.where(live, rows, 0).long(), torch.where(live, tokens, 0).long()
    # padding writes what the first logit becomes anyway: to drop it would make the host wait for its number
    first_masked = (live & (row == 0) & (token == 0)).any()
    first = torch.where(first_masked, -math.inf, logits[0, 0])
    logits[row, token] = torch.where(live, -math.inf, first)
