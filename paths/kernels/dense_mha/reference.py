"""The definition of dense_mha, one request and head at a time in float32."""

from __future__ import annotations

import torch
from torch import Tensor


def dense_mha(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    *,
    scale: float,
    max_queries: int,
) -> tuple[Tensor, Tensor]:
    """q `[T, H, Dk]`, k `[S, H, Dk]`, v `[S, H, Dv]`: the non-absorbed form, no cache, no selection.

    query_starts and key_starts int32 `[B + 1]`: request b has query rows query_starts[b] to
    query_starts[b + 1], and its keys likewise. Its queries are its last positions: the i-th of n sees keys
    0 .. i + keys - n. max_queries is the largest number of query rows of a request. Returns out `[T, H, Dv]`
    in q's dtype and lse float32 `[T, H]` (natural logarithm). A row that sees no key, or that belongs to no
    request, gives 0 and -inf.
    """
    tokens, heads, _ = q.shape
    out = torch.zeros(tokens, heads, v.shape[-1], dtype=q.dtype)
    lse = torch.full((tokens, heads), -torch.inf)
    for b in range(query_starts.shape[0] - 1):
        first, stop = int(query_starts[b]), int(query_starts[b + 1])
        keys = slice(int(key_starts[b]), int(key_starts[b + 1]))
        shift = (keys.stop - keys.start) - (stop - first)
        for i in range(stop - first):
            seen = slice(keys.start, keys.start + i + shift + 1)
            if seen.stop <= seen.start:
                continue
            for h in range(heads):
                logits = k[seen, h].float() @ q[first + i, h].float() * scale
                lse[first + i, h] = logits.logsumexp(0)
                out[first + i, h] = (logits.softmax(0) @ v[seen, h].float()).to(q.dtype)
    return out, lse
