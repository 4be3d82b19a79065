"""Log-probabilities that requests ask for. Only rows of those requests pass through here."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paths.api import WHOLE_VOCABULARY, TokenLogprobs


def token_logprobs(logits: Tensor, token_ids: Sequence[int], alternatives: int) -> list[TokenLogprobs]:
    """One TokenLogprobs per row of float32 logits [N, V], before temperature and masks.

    `alternatives` −1 returns the whole vocabulary in id order, n the n best (equal values by id).
    """
    scores = torch.log_softmax(logits.float(), dim=-1)
    chosen = scores.gather(1, torch.as_tensor(token_ids, dtype=torch.int64, device=logits.device)[:, None])
    if alternatives == WHOLE_VOCABULARY:
        top_ids = torch.arange(logits.shape[1], dtype=torch.int32).expand(len(token_ids), -1).numpy()
        top = scores.cpu().numpy()
    else:
        ordered, order = scores.sort(dim=-1, descending=True, stable=True)
        top_ids = order[:, :alternatives].int().cpu().numpy()
        top = ordered[:, :alternatives].cpu().numpy()
    values = chosen[:, 0].tolist()
    return [
        TokenLogprobs(
            token_id=int(token),
            logprob=values[row],
            top_ids=top_ids[row].copy(),
            top_logprobs=top[row].copy(),
        )
        for row, token in enumerate(token_ids)
    ]
