"""The model with gradients: main layers and the MTP layer, on rows of packed documents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from paths.models.config import ModelConfig
from paths.models.rope import rope_tables
from paths.models.train.attention import (
    Indexing,
    Keys,
    Sight,
    alignment_loss,
    attend,
    hidden_bias,
    index_keys,
    index_scores,
    project,
    rms_norm,
    selection,
)
from paths.models.train.moe import feed_forward, mlp
from paths.models.train.parameters import EMBED, HEAD, Parameters

OFF = Indexing(align=False, select=False)
ALIGN = Indexing(align=True, select=False)
SPARSE = Indexing(align=True, select=True)
SELECT = Indexing(align=False, select=True)
CHUNK = 192


def _unchanged(function: Any) -> Any:
    return function


@dataclass
class Side:
    """What a forward pass finds out beside its hidden states."""

    alignment: list[Tensor] = field(default_factory=list)  # one KL per layer
    loads: dict[str, Tensor] = field(default_factory=dict)  # routed rows by router bias
    caches: list[Keys] | None = None  # per layer: keys of earlier tokens, which new ones are written to
    kept: list[Keys] | None = None  # filled with the keys of each layer, if it is a list


class TrainedModel:
    """Forward pass of the exact architecture; the parameters come with every call.

    compiled: torch.compile for the parts between the matmuls that gain by it; each new shape compiles once.
    select: scores `[B, L, S]` and a count → bool `[B, L, S]`, what sparse attention sees.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        max_length: int,
        compiled: bool = False,
        select: Callable[[Tensor, int], Tensor] = selection,
    ) -> None:
        self.config = config
        self._select = select
        wrap = partial(torch.compile, dynamic=False) if compiled else _unchanged
        if compiled:
            # layers differ in a constant: the names of their tensors
            torch._dynamo.config.recompile_limit = 64
        self._rms_norm, self._project, self._attend = wrap(rms_norm), wrap(project), wrap(attend)
        self._mlp = wrap(mlp)
        self.mtp_prefix = f"model.layers.{config.num_hidden_layers}"
        self.cos, self.sin = rope_tables(config.rope, max_length)

    def sight(self, positions: Tensor, document: Tensor) -> Sight:
        """Causal within each document; padding (document 0) sees and is seen by nothing. All `[B, L]`."""
        length = positions.shape[1]
        same = (document[:, :, None] == document[:, None]) & (document > 0)[:, :, None]
        visible = same & torch.ones(length, length, dtype=torch.bool).tril()
        return self.sight_of(visible, positions)

    def sight_of(self, visible: Tensor, positions: Tensor) -> Sight:
        return Sight(visible, hidden_bias(visible), self.cos[positions], self.sin[positions])

    def hidden(self, p: Parameters, tokens: Tensor, sight: Sight, indexing: Indexing, side: Side) -> Tensor:
        """tokens `[B, L]` → states `[B, L, Dm]` after the final norm."""
        x = F.embedding(tokens, p[EMBED])
        for layer in range(self.config.num_hidden_layers):
            x = self.layer(p, layer, x, sight, indexing, side)
        return self._rms_norm(x, p["model.norm.weight"], self.config.rms_norm_eps)

    def mtp(
        self, p: Parameters, hidden: Tensor, following: Tensor, sight: Sight, indexing: Indexing, side: Side
    ) -> Tensor:
        """States `[B, L, Dm]` that predict the token after `following`, the next token of each row."""
        eps, layer = self.config.rms_norm_eps, self.config.num_hidden_layers
        prefix = self.mtp_prefix
        embedded = self._rms_norm(F.embedding(following, p[EMBED]), p[f"{prefix}.enorm.weight"], eps)
        state = self._rms_norm(hidden, p[f"{prefix}.hnorm.weight"], eps)
        x = F.linear(torch.cat([embedded, state], dim=-1), p[f"{prefix}.eh_proj.weight"])
        x = self.layer(p, layer, x, sight, indexing, side)
        return self._rms_norm(x, p[f"{prefix}.shared_head.norm.weight"], eps)

    def logits(self, p: Parameters, hidden: Tensor) -> Tensor:
        return F.linear(hidden, p[HEAD])

    def layer(
        self, p: Parameters, layer: int, x: Tensor, sight: Sight, indexing: Indexing, side: Side
    ) -> Tensor:
        """One decoder layer on the residual stream x `[B, L, Dm]`."""
        prefix, eps = f"model.layers.{layer}", self.config.rms_norm_eps
        h = self._rms_norm(x, p[f"{prefix}.input_layernorm.weight"], eps)
        x = x + self._attention(p, layer, h, sight, indexing, side)
        h = self._rms_norm(x, p[f"{prefix}.post_attention_layernorm.weight"], eps)
        return x + feed_forward(p, layer, h.flatten(0, 1), self.config, side.loads, self._mlp).view_as(x)

    def _attention(
        self, p: Parameters, layer: int, h: Tensor, sight: Sight, indexing: Indexing, side: Side
    ) -> Tensor:
        prefix = f"model.layers.{layer}.self_attn"
        query, latent, keys = self._project(p, prefix, h, sight, self.config)
        if indexing.align or indexing.select:
            # the indexer learns from the alignment alone: nothing flows into the main model
            h, latent = h.detach(), latent.detach()
            keys.index = index_keys(p, prefix, h, sight, self.config)
        if side.caches is not None:
            side.caches[layer].write(keys, sight.visible)
            keys = side.caches[layer]
        elif side.kept is not None:
            side.kept.append(keys)
        length, total = sight.visible.shape[1:]
        chunk = CHUNK if length == total else length  # rows of one chunk see no key behind its end
        outputs, losses = [], []
        for start in range(0, length, chunk):
            end = min(start + chunk, length)
            rows = slice(start, end)
            part = sight.part(rows, end if length == total else total)
            out, loss = self._chunk(
                p, prefix, (query[:, :, rows], latent[:, rows], h[:, rows]), keys.until(part), part, indexing
            )
            outputs.append(out)
            losses.append(loss)
        if indexing.align:
            side.alignment.append(torch.stack(losses).sum() / sight.visible.any(-1).sum())
        return F.linear(torch.cat(outputs, dim=1), p[f"{prefix}.o_proj.weight"])

    def _chunk(
        self,
        p: Parameters,
        prefix: str,
        rows: tuple[Tensor, Tensor, Tensor],
        keys: Keys,
        sight: Sight,
        indexing: Indexing,
    ) -> tuple[Tensor, Tensor]:
        """Attention of some rows (query, q latent, layer input), and their summed alignment loss."""
        query, latent, h = rows
        seen, bias = sight.visible, sight.bias
        scores = None
        if indexing.align or indexing.select:
            assert keys.index is not None
            scores = index_scores(p, prefix, h, latent, keys.index, sight, self.config)
            if indexing.select:
                seen = self._select(scores.detach(), self.config.index_topk)
                bias = hidden_bias(seen)
        out, weights = self._attend(query, keys.key, keys.value, bias, self.config.softmax_scale)
        if scores is None or not indexing.align:
            return out, torch.zeros(())
        return out, alignment_loss(scores, seen, weights)
