"""rejection, as its definition: one request after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from paths.kernels.sample.reference import accept_uniform, gumbel_row, kept_tokens


def rejection(
    logits: Tensor,
    draft_ids: Tensor,
    draft_probs: Tensor | None,
    *,
    row_starts: Tensor,
    rows: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
    max_drafts: int,
    all_greedy: bool,
) -> tuple[Tensor, Tensor]:
    """Tokens int64 `[R, max_drafts + 1]`, −1 past the end, and how many int32 `[R]` (0 without rows).

    Request r has the logits rows row_starts[r] to row_starts[r + 1], int32 `[R + 1]`: one per draft, and one
    for the token after the last draft. Of row l: draft_ids[l] int64 is the draft that it judges (any value in
    the last row of a request), rows[l] int32 its entry in the sampling parameters, positions[l] int64 the
    position of the token that it yields. draft_probs float32 `[S, K, V]`: of entry s, draft j, the
    distribution that it was drawn from; None: drafts were not drawn, so the distribution is one-hot.
    Parameters as in `sample`.

    A draft d is accepted iff q(d) > 0 and u < p(d) / q(d), u in [0, 1) and p the target distribution after
    temperature, top-k and top-p; at temperature 0 iff it is the most likely token. The first rejected draft
    is replaced by a draw from max(p − q, 0), or from p where that is zero or d is no token. So every emitted
    token is distributed as p.
    """
    logits = torch.nan_to_num(logits, nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    requests = len(row_starts) - 1
    tokens = torch.full((requests, max_drafts + 1), -1, dtype=torch.int64, device=logits.device)
    counts = torch.zeros(requests, dtype=torch.int32, device=logits.device)
    for r in range(requests):
        first, end = int(row_starts[r]), int(row_starts[r + 1])
        for row in range(first, end):
            entry = int(rows[row])
            draft = int(draft_ids[row]) if row < end - 1 else -1
            if all_greedy or temperature[entry] == 0:
                token = int(logits[row].argmax())
                accepted = token == draft
            else:
                q = None if draft_probs is None or row == end - 1 else draft_probs[entry, row - first]
                scaled = logits[row] / temperature[entry]
                kept = kept_tokens(scaled, top_k=int(top_k[entry]), top_p=float(top_p[entry]))
                token, accepted = _judge(scaled, kept, draft, q, int(seeds[entry]), int(positions[row]))
            tokens[r, row - first] = token
            counts[r] += 1
            if not accepted:
                break
    return tokens, counts


def _judge(
    scaled: Tensor, kept: Tensor, draft: int, q: Tensor | None, seed: int, position: int
) -> tuple[int, bool]:
    """The draft and True, or a token drawn instead of it and False."""
    log_p = torch.full_like(scaled, -torch.inf)
    log_p[kept] = scaled[kept]
    weight = torch.where(log_p == log_p.max(), 1.0, (log_p - log_p.max()).exp())  # be the largest infinite
    p = weight / weight.sum()
    is_token = 0 <= draft < len(p)
    if q is None:
        q = torch.zeros_like(p)
        if is_token:
            q[draft] = 1.0
    if is_token and q[draft] > 0 and accept_uniform(seed, position) < float(p[draft]) / float(q[draft]):
        return draft, True
    noise = gumbel_row(seed, position, range(len(p)))
    residual = torch.where(p > q, p - q, 0.0)
    if not is_token or residual.sum() == 0:
        return int((log_p + noise).argmax()), False
    return int((residual.log() + noise).argmax()), False
