"""The generic model: unfused torch, eager or compiled piece by piece between its opaque ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from paths.engine.batch import ForwardBatch, LayerCache
from paths.engine.context import ForwardContext, forward_context
from paths.engine.parallel import ParallelGroup
from paths.generic_mrv1.layer import GenericLayer
from paths.generic_mrv1.mtp import GenericMtpLayer
from paths.generic_mrv1.ops import RECORDED_OPS, SPLIT_OPS
from paths.generic_mrv1.products import products_of
from paths.graphs.piecewise import PiecewiseCompiler
from paths.kernels.add_rms_norm.torch_impl import add_rms_norm
from paths.kernels.registry import Kernels
from paths.kernels.rms_norm.torch_impl import rms_norm
from paths.models.config import ModelConfig
from paths.models.gemm import writes_float32
from paths.models.rope import rope_tables
from paths.models.weights import Weights


class GenericModel:
    """DeepSeek-V3.2 and GLM-5 one operation after the other.

    compiled: torch.compile with one piece before, between and after the attention of each layer; the first
    forward passes compile (one for many rows, one for a single row), no later one does.
    """

    recorded_ops = RECORDED_OPS

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        kernels: Kernels,
        *,
        dtype: torch.dtype,
        group: ParallelGroup,
        hadamard: bool,
        max_model_len: int,
        compiled: bool = False,
    ) -> None:
        self.config, self.dtype, self.kernels, self.hadamard = config, dtype, kernels, hadamard
        self.max_model_len = max_model_len
        self._embed_tokens, self._norm, self._lm_head = weights.embed_tokens, weights.norm, weights.lm_head
        self._products = products = products_of(kernels)
        self._layers = [
            GenericLayer(config, i, layer, group, products) for i, layer in enumerate(weights.layers)
        ]
        self._cos, self._sin = (
            table.to(weights.norm.device) for table in rope_tables(config.rope, max_model_len)
        )
        self._compiler = PiecewiseCompiler(self._hidden, split_ops=SPLIT_OPS) if compiled else None
        self._mtp = [
            GenericMtpLayer(
                config,
                config.num_hidden_layers + n,
                layer,
                group,
                products,
                cos=self._cos,
                sin=self._sin,
                compiled=compiled,
            )
            for n, layer in enumerate(weights.mtp)
        ]

    def forward(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Tensor:
        """Hidden states `[T, Dm]` after the final norm. Raises ValueError beyond the position tables."""
        self._check_length(batch)
        with torch.inference_mode(), forward_context(self.context(batch, caches)):
            self._select(batch)
            run = self._hidden if self._compiler is None else self._compiler
            return run(batch.input_ids, batch.positions)

    def context(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> ForwardContext:
        """What the opaque ops look up."""
        return ForwardContext(
            batch=batch,
            caches=caches,
            kernels=self.kernels,
            index_topk=self.config.index_topk,
            hadamard=self.hadamard,
        )

    def bind(self, batch: ForwardBatch, caches: Sequence[LayerCache]) -> Callable[[], Tensor]:
        """The forward pass over these tensors, for a capture; inside of a forward context."""
        self._select(batch)
        tensors = (batch.input_ids, batch.positions)
        run = partial(self._hidden, *tensors) if self._compiler is None else self._compiler.bind(*tensors)

        def forward() -> Tensor:
            self._select(batch)
            return run()

        return forward

    def num_breaks(self) -> int:
        """Compiled, the opaque ops of each layer stand between two pieces."""
        return 0 if self._compiler is None else len(self._layers)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden `[N, Dm]` → float32 `[N, V]`."""
        return self._project(hidden, self._lm_head)

    def draft(
        self, batch: ForwardBatch, hidden: Tensor, caches: Sequence[LayerCache], *, step: int = 0
    ) -> Tensor:
        """States `[N, Dm]` of draft `step` for `batch.queries`, normed. Raises ValueError as `forward`."""
        self._check_length(batch)
        with torch.inference_mode(), forward_context(self.draft_context(batch, caches, step=step)):
            self._select_for_draft(batch, step)
            return self._mtp_layer(step).run(batch.input_ids, batch.positions, hidden, _wanted(batch))

    def draft_logits(self, hidden: Tensor, *, step: int = 0) -> Tensor:
        """hidden `[N, Dm]` → float32 `[N, V]`."""
        return self._project(hidden, self._mtp_layer(step).head)

    def draft_context(
        self, batch: ForwardBatch, caches: Sequence[LayerCache], *, step: int
    ) -> ForwardContext:
        """What the opaque ops of a draft look up."""
        return replace(self.context(batch, caches), keep_selection=self.config.reuses_selection(step))

    def bind_draft(
        self, batch: ForwardBatch, hidden: Tensor, caches: Sequence[LayerCache], *, step: int
    ) -> Callable[[], Tensor]:
        """A draft over these tensors, for a capture; inside of its context."""
        self._select_for_draft(batch, step)
        run = self._mtp_layer(step).bind(batch.input_ids, batch.positions, hidden, _wanted(batch))

        def draft() -> Tensor:
            self._select_for_draft(batch, step)
            return run()

        return draft

    def num_draft_breaks(self) -> int:
        """One layer."""
        return 0 if self._compiler is None else 1

    def compile_mode(self) -> str:
        """`none`, or `inductor-piecewise` once compiled pieces have run."""
        return "inductor-piecewise" if any(c.pieces_run for c in self._compilers()) else "none"

    def compile_count(self) -> int:
        """Graphs compiled so far."""
        return sum(compiler.compiles for compiler in self._compilers())

    def _compilers(self) -> list[PiecewiseCompiler]:
        compilers = [self._compiler, *(layer.compiler for layer in self._mtp)]
        return [compiler for compiler in compilers if compiler is not None]

    def _mtp_layer(self, step: int) -> GenericMtpLayer:
        return self._mtp[step % len(self._mtp)]

    def _check_length(self, batch: ForwardBatch) -> None:
        if batch.max_length > self.max_model_len:
            raise ValueError(
                f"a row sees {batch.max_length} keys, the model was built for {self.max_model_len}"
            )

    def _select_for_draft(self, batch: ForwardBatch, step: int) -> None:
        if not self.config.reuses_selection(step):
            self._select(batch)

    def _select(self, batch: ForwardBatch) -> None:
        """Where no row sees more than index_topk keys, all are selected for the whole step."""
        if batch.max_length <= self.config.index_topk:
            self.kernels.select_all(batch.queries.lengths, out=batch.queries.topk_indices)

    def _hidden(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        eps = self.config.rms_norm_eps
        cos, sin = self._cos[positions], self._sin[positions]
        residual = F.embedding(input_ids, self._embed_tokens)
        update: Tensor | None = None
        for layer in self._layers:
            gain = layer.weights.input_layernorm
            if update is None:
                h = rms_norm(residual, gain, eps)
            else:
                h, residual = add_rms_norm(update, residual, gain, eps)
            update = layer.attention(h, cos, sin)
            h, residual = add_rms_norm(update, residual, layer.weights.post_attention_layernorm, eps)
            update = layer.feed_forward(h)
        assert update is not None, "a model has at least one layer"
        return add_rms_norm(update, residual, self._norm, eps)[0]

    def _project(self, hidden: Tensor, head: Tensor) -> Tensor:
        with nullcontext() if torch.is_inference_mode_enabled() else torch.inference_mode():
            if writes_float32(hidden):
                return torch.mm(hidden, head.t(), out_dtype=torch.float32)
            return self._products.linear(hidden, head).float()


def _wanted(batch: ForwardBatch) -> Tensor:
    """Numbers of the rows whose states are used: one compiled graph serves draft 0 and later ones."""
    if batch.wanted is not None:
        return batch.wanted.rows
    with torch.inference_mode(mode=False):  # a kind of tensor of its own, for which would be compiled again
        return torch.arange(batch.num_tokens, device=batch.positions.device)
