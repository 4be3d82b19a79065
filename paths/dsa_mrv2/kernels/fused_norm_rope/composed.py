"""fused_norm_rope as a composition of the shared ops."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from paths.dsa_mrv2.kernels.arguments import LatentNorms, Rotary
from paths.engine.batch import ForwardBatch, LayerCache
from paths.kernels.registry import Kernels

LAYER_NORM_EPS = 1e-6  # of the indexer's key; a constant of the architecture, not rms_norm_eps


def fused_norm_rope(
    kernels: Kernels,
    projected: Tensor,
    norms: LatentNorms,
    rotary: Rotary,
    batch: ForwardBatch,
    cache: LayerCache,
    *,
    hadamard: bool,
) -> Tensor:
    """projected `[T, ≥ Q + C + R (+ dI)]`: query latent, key latent, RoPE key and, with an indexer, its key.

    Writes both caches at `batch.slot_mapping` and returns the normed query latent `[T, Q]`.
    """
    q_rank, latent, rope = norms.q.shape[0], norms.kv.shape[0], 2 * rotary.cos.shape[1]
    widths = [q_rank, latent, rope, projected.shape[1] - q_rank - latent - rope]
    q, c, k_pe, rest = projected.split(widths, dim=1)
    k_pe = _rotate(kernels, k_pe, rotary, batch, interleaved=rotary.interleaved)
    c = kernels.rms_norm(c, norms.kv, norms.eps)
    kernels.mla_cache_write(c, k_pe, batch.slot_mapping, cache)
    if norms.index_weight is not None and norms.index_bias is not None:
        dim = norms.index_weight.shape[0]
        key = functional.layer_norm(
            rest[:, :dim].float(), (dim,), norms.index_weight, norms.index_bias, LAYER_NORM_EPS
        ).to(projected.dtype)
        turned = _rotate(kernels, key[:, :rope], rotary, batch, interleaved=rotary.index_interleaved)
        key[:, :rope] = turned
        kernels.index_k_write(key, batch.slot_mapping, cache, hadamard=hadamard)
    return kernels.rms_norm(q, norms.q, norms.eps)


def _rotate(kernels: Kernels, x: Tensor, rotary: Rotary, batch: ForwardBatch, *, interleaved: bool) -> Tensor:
    """One head `[T, R]`."""
    turned = kernels.rope(x[:, None], rotary.cos, rotary.sin, batch.positions, interleaved=interleaved)
    return turned[:, 0]
