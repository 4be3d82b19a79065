"""One MTP layer of the generic model, eager or compiled piece by piece like the main layers."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from paths.engine.parallel import ParallelGroup
from paths.generic_mrv1.layer import GenericLayer
from paths.generic_mrv1.ops import SPLIT_OPS
from paths.generic_mrv1.products import Products
from paths.graphs.piecewise import PiecewiseCompiler
from paths.kernels.add_rms_norm.torch_impl import add_rms_norm
from paths.kernels.rms_norm.torch_impl import rms_norm
from paths.models.config import ModelConfig
from paths.models.weights import MtpWeights


class GenericMtpLayer:
    """Predicts the token after the next one from a hidden state and the embedding of the next token.

    layer: its number among all layers, that of its cache. cos, sin: the model's tables `[P, R / 2]`.
    """

    def __init__(
        self,
        config: ModelConfig,
        layer: int,
        weights: MtpWeights,
        group: ParallelGroup,
        products: Products,
        *,
        cos: Tensor,
        sin: Tensor,
        compiled: bool,
    ) -> None:
        self._config, self._weights, self._cos, self._sin = config, weights, cos, sin
        self._layer = GenericLayer(config, layer, weights.layer, group, products)
        self.head = weights.head
        self.compiler = PiecewiseCompiler(self._states, split_ops=SPLIT_OPS) if compiled else None

    def run(self, input_ids: Tensor, positions: Tensor, hidden: Tensor, wanted: Tensor) -> Tensor:
        """input_ids and positions int64 `[T]`, hidden `[T, Dm]` → states after shared_head.norm `[N, Dm]`.

        wanted int64 `[N]`: the rows whose states are used.
        """
        forward = self._states if self.compiler is None else self.compiler
        return forward(input_ids, positions, hidden, wanted)

    def bind(
        self, input_ids: Tensor, positions: Tensor, hidden: Tensor, wanted: Tensor
    ) -> Callable[[], Tensor]:
        """`run` over these very tensors, for a capture."""
        if self.compiler is not None:
            return self.compiler.bind(input_ids, positions, hidden, wanted)
        return lambda: self._states(input_ids, positions, hidden, wanted)

    def _states(self, input_ids: Tensor, positions: Tensor, hidden: Tensor, wanted: Tensor) -> Tensor:
        eps, w, layer = self._config.rms_norm_eps, self._weights, self._layer
        cos, sin = self._cos[positions], self._sin[positions]
        embedded = rms_norm(F.embedding(input_ids, w.embed_tokens), w.enorm, eps)
        joined = torch.cat([embedded, rms_norm(hidden, w.hnorm, eps)], dim=-1)
        residual = layer.products.linear(joined, w.eh_proj)
        update = layer.attention(rms_norm(residual, w.layer.input_layernorm, eps), cos, sin, wanted)
        h, residual = add_rms_norm(update, residual[wanted], w.layer.post_attention_layernorm, eps)
        return add_rms_norm(layer.feed_forward(h), residual, w.norm, eps)[0]
