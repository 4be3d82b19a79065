"""rejection in vectorised torch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from paths.kernels.sample.noise import accept_uniform, gumbel_noise
from paths.kernels.sample.torch_impl import (
    MASS_ONE,
    finite_or_infinite,
    mask_top_k_top_p,
    relative_weight,
    scale,
)


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
    """See the reference."""
    requests = len(row_starts) - 1
    uniform = all_greedy and requests > 0 and len(logits) == requests * (max_drafts + 1)
    if uniform and logits.device.type == "cpu":
        return _uniform_greedy_on_host(logits, draft_ids, requests)
    logits = finite_or_infinite(logits)
    if uniform:
        return _uniform_greedy(logits, draft_ids, requests)
    if max_drafts == 0:
        draft_probs = None  # nothing is judged
    first, end = row_starts[:-1].long(), row_starts[1:].long()
    has_rows = end > first
    step = torch.arange(max_drafts + 1, device=logits.device)
    # row of (request, step); steps past a request's end repeat its last row and are never looked at
    at = (first[:, None] + step).minimum((end - 1)[:, None]).clamp(min=0)
    if not len(logits):
        return torch.full_like(at, -1), torch.zeros_like(first, dtype=torch.int32)
    judged = step < (end - first - 1)[:, None]
    greedy = logits.argmax(-1)
    accepts = greedy == draft_ids
    entry = rows.long()
    if not all_greedy:
        is_greedy = temperature[entry] == 0
        masked = mask_top_k_top_p(scale(logits, temperature[entry]), top_k=top_k[entry], top_p=top_p[entry])
        p = _probabilities(masked)
        is_token = (draft_ids >= 0) & (draft_ids < p.shape[1])
        known = torch.where(is_token, draft_ids, 0)
        p_draft = p.gather(1, known[:, None])[:, 0].double()
        if draft_probs is None:
            q_draft = torch.ones_like(p_draft)
        else:
            # index of each row's draft within its request; last rows judge nothing and may not exist in q
            number = torch.zeros_like(entry).index_put_((at[judged],), step.expand_as(at)[judged])
            q_draft = draft_probs[entry, number, known].double()
        u = accept_uniform(seeds=seeds[entry], positions=positions)
        drawn = is_token & (q_draft > 0) & (u < p_draft / torch.where(q_draft > 0, q_draft, 1.0))
        accepts = torch.where(is_greedy, accepts, drawn)
    accepted = (accepts[at] & judged).long().cumprod(1).sum(1)
    final = at.gather(1, accepted[:, None])[:, 0]
    token = greedy[final]
    if not all_greedy:
        q = (
            None
            if draft_probs is None
            else draft_probs[entry[final], accepted.clamp(max=draft_probs.shape[1] - 1)]
        )
        draws_residual = is_token[final] & (final < end - 1)
        drawn_token = _draw(
            masked[final],
            p[final],
            q,
            draft_ids[final],
            draws_residual,
            gumbel_noise(seeds=seeds[entry[final]], positions=positions[final], vocab_size=p.shape[1]),
        )
        token = torch.where(is_greedy[final], token, drawn_token)
    tokens = torch.where(step < accepted[:, None], draft_ids[at], -1)
    tokens.scatter_(1, accepted[:, None], token[:, None])
    return tokens.masked_fill(~has_rows[:, None], -1), torch.where(has_rows, accepted + 1, 0).int()


def _uniform_greedy(logits: Tensor, draft_ids: Tensor, requests: int) -> tuple[Tensor, Tensor]:
    """Every request has as many rows as it may have: the usual decode step, in few operations."""
    best = logits.argmax(-1).view(requests, -1)
    drafts = draft_ids.view(best.shape)
    accepted = (best[:, :-1] == drafts[:, :-1]).int().cumprod(1, dtype=torch.int32).sum(1, dtype=torch.int32)
    # an accepted draft is the best token
    behind = torch.arange(best.shape[1], device=best.device) > accepted[:, None]
    return best.masked_fill(behind, -1), accepted + 1


def _uniform_greedy_on_host(logits: Tensor, draft_ids: Tensor, requests: int) -> tuple[Tensor, Tensor]:
    """As `_uniform_greedy`, on the arrays of a CPU: ten small tensor operations cost more than the search."""
    values = logits.numpy()
    largest = values.argmax(axis=-1)
    if np.isnan(values[np.arange(len(values)), largest]).any():
        largest = finite_or_infinite(logits).numpy().argmax(axis=-1)
    best = largest.reshape(requests, -1)
    ends = best != draft_ids.numpy().reshape(best.shape)
    ends[:, -1] = True
    accepted = ends.argmax(axis=1).astype(np.int32)
    best[np.arange(best.shape[1]) > accepted[:, None]] = -1
    return torch.from_numpy(best), torch.from_numpy(accepted + 1)


def _probabilities(masked: Tensor) -> Tensor:
    """softmax in float32; the sum is taken in fixed point, so that its order does not matter."""
    weight = relative_weight(masked, masked.amax(-1, keepdim=True))
    total = (weight * MASS_ONE).long().sum(-1, keepdim=True)
    return weight / (total.double() / MASS_ONE).float()


def _draw(
    masked: Tensor, p: Tensor, q: Tensor | None, draft: Tensor, draws_residual: Tensor, noise: Tensor
) -> Tensor:
    """Token ids `[R]`: from max(p − q, 0) where `draws_residual` and that is not zero, else from p."""
    plain = masked + noise
    if q is None:
        token = torch.arange(p.shape[1], device=p.device)
        residual = plain.masked_fill(token == draft[:, None], -torch.inf)
    else:
        residual = torch.where(p > q, p - q, 0.0).log() + noise
    use = draws_residual & (residual.amax(-1) > -torch.inf)
    return torch.where(use[:, None], residual, plain).argmax(-1)
