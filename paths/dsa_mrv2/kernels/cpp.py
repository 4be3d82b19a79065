"""The fused operations in C++."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from paths.dsa_mrv2.kernels.arguments import LatentNorms, MoeBlock, Rotary
from paths.engine.batch import ForwardBatch, LayerCache
from paths.kernels.cpp import NATIVE, Variant, load_operators

NAMESPACE = "dsa_mrv2"


def load(variant: Variant = NATIVE) -> CppFusedKernels:
    """Build and load the fused operations. Raises CppUnavailable with the reason."""
    return CppFusedKernels(load_operators(NAMESPACE, Path(__file__).parent, variant))


class CppFusedKernels:
    """Same signatures as `composed.py` of each operation, without the shared kernels."""

    def __init__(self, operators: Any) -> None:
        self.embed_norm = operators.embed_norm.default
        self.linear = operators.linear.default
        self.absorb_output = operators.absorb_output.default
        self.gated_mlp = operators.gated_mlp.default
        self._fused_norm_rope = operators.fused_norm_rope.default
        self._fused_q = operators.fused_q.default
        self._moe_block = operators.moe_block.default

    def fused_norm_rope(
        self,
        projected: Tensor,
        norms: LatentNorms,
        rotary: Rotary,
        batch: ForwardBatch,
        cache: LayerCache,
        *,
        hadamard: bool,
    ) -> Tensor:
        return self._fused_norm_rope(
            projected,
            norms.q,
            norms.kv,
            norms.eps,
            rotary.cos,
            rotary.sin,
            batch.positions,
            batch.slot_mapping,
            cache.kv,
            cache.kv_dtype,
            cache.k_scale,
            rotary.interleaved,
            norms.index_weight,
            norms.index_bias,
            cache.index,
            cache.index_dtype,
            rotary.index_interleaved,
            hadamard,
        )

    def fused_q(
        self,
        projected: Tensor,
        w_uk: Tensor,
        rotary: Rotary,
        positions: Tensor,
        index_weights: Tensor | None,
        *,
        index_dim: int,
        index_dtype: str,
        hadamard: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        return self._fused_q(
            projected,
            w_uk,
            rotary.cos,
            rotary.sin,
            positions,
            rotary.interleaved,
            index_weights,
            index_dim,
            index_dtype,
            rotary.index_interleaved,
            hadamard,
        )

    def moe_block(self, x: Tensor, block: MoeBlock) -> Tensor:
        return self._moe_block(
            x,
            block.gate,
            block.bias,
            block.n_group,
            block.topk_group,
            block.top_k,
            block.norm,
            block.scaling,
            block.w13,
            block.w2,
        )
