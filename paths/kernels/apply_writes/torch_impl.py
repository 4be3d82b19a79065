"""apply_writes for any device."""

from __future__ import annotations

import torch
from torch import Tensor


def apply_writes(state: Tensor, writes: Tensor, values: Tensor, *, longest: int) -> None:
    """state int32 `[N]`, writes int32 `[M, 3]` as (to, first, count), values int32 `[W]`."""
    if writes.numel() == 0 or values.numel() == 0 or longest == 0:
        return
    to, first, count = writes.long().unbind(1)
    word = torch.arange(longest, device=state.device)
    live = (to >= 0)[:, None] & (word < count[:, None])
    # words of no write add 0 to the first word: to drop them would make the host wait for their number
    at = torch.where(live, to[:, None] + word, 0)
    source = torch.where(live, first[:, None] + word, 0)
    state.index_put_((at,), torch.where(live, values[source] - state[at], 0), accumulate=True)
