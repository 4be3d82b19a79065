"""dense_mha for any device: requests padded to the longest, in chunks of requests by a memory budget."""

from __future__ import annotations

import torch
from torch import Tensor

BUDGET_BYTES = 256 << 20


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
    """q `[T, H, Dk]`, k `[S, H, Dk]`, v `[S, H, Dv]` → out `[T, H, Dv]`, lse float32 `[T, H]`."""
    tokens, heads, _ = q.shape
    out = q.new_zeros(tokens, heads, v.shape[-1])
    lse = torch.full((tokens, heads), -torch.inf, device=q.device)
    key_counts = key_starts.diff()
    if not tokens or not key_counts.numel() or not k.shape[0]:
        return out, lse
    max_keys = int(key_counts.max())
    step = max(1, BUDGET_BYTES // max(1, 8 * heads * max_queries * max_keys))
    for start in range(0, key_counts.numel(), step):
        requests = slice(start, start + step)
        rows, row_used = _rows(query_starts, requests, max_queries)
        columns, column_used = _rows(key_starts, requests, max_keys)
        shift = (key_counts - query_starts.diff())[requests, None, None]
        i = torch.arange(max_queries, device=q.device)[:, None]
        seen = (torch.arange(max_keys, device=q.device) <= i + shift) & column_used[:, None]
        part, part_lse = _attend(
            q[rows].float(), k[columns].float(), v[columns].float(), seen, column_used, scale
        )
        out[rows[row_used]] = part[row_used].to(q.dtype)
        lse[rows[row_used]] = part_lse[row_used]
    return out, lse


def _rows(starts: Tensor, requests: slice, width: int) -> tuple[Tensor, Tensor]:
    """Row numbers `[requests, width]`, 0 where a request has fewer, and which of them are rows."""
    first, stop = starts[:-1][requests, None].long(), starts[1:][requests, None].long()
    rows = first + torch.arange(width, device=starts.device)
    used = rows < stop
    return torch.where(used, rows, 0), used


def _attend(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor, used: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    logits = torch.einsum("bihd,bjhd->bhij", q, k) * scale
    logits = torch.where(seen[:, None], logits, -torch.inf)
    highest = logits.amax(-1, keepdim=True)
    # an empty row has no maximum: subtracting -inf from -inf would be NaN
    weights = (logits - highest.masked_fill(highest.isneginf(), 0.0)).exp()
    total = weights.sum(-1, keepdim=True)
    # a value that is no key's may be NaN, and 0 × NaN is NaN
    v = torch.where(used[..., None, None], v, 0.0)
    out = torch.einsum("bhij,bjhd->bihd", weights / total.masked_fill(total == 0, 1.0), v)
    return out, (highest + total.log()).squeeze(-1).transpose(1, 2)
