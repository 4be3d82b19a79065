"""The opaque ops of the generic model. The compiler sees names and shapes; the kernels run outside of it.

Cache write, indexer and attention are where the graph is split. They change paged caches that the compiler
never sees: an in-place write that it did see would make it copy the whole cache in every step.
Their tensors may have padding rows behind those of the running batch, which are left out.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx.node import has_side_effect
from torch.library import Library, register_fake

from paths.engine.context import current_context

NAMESPACE = "dsa_generic"

_library = Library(NAMESPACE, "DEF")
_library.define("mla_cache_write(Tensor c, Tensor k_pe, int layer) -> ()")
_library.define("indexer(Tensor q, Tensor k, Tensor w, int layer) -> ()")
_library.define("sparse_attention(Tensor q, int latent, float scale, int layer) -> Tensor")
_library.define("moe_experts(Tensor x, Tensor ids, Tensor weights, Tensor w13, Tensor w2) -> Tensor")


def _mla_cache_write(c: Tensor, k_pe: Tensor, layer: int) -> None:
    context = current_context()
    live = context.batch.num_tokens
    if c.shape[0] != live:
        c, k_pe = c[:live], k_pe[:live]
    context.kernels.mla_cache_write(c, k_pe, context.batch.slot_mapping, context.caches[layer])


def _indexer(q: Tensor, k: Tensor, w: Tensor, layer: int) -> None:
    """Write this layer's index keys, then select for every row; the selection stays in the batch.

    Where no row sees more than index_topk keys, the model has selected all of them for the whole step; drafts
    may reuse the selection of the first one.
    """
    context = current_context()
    kernels, cache, batch = context.kernels, context.caches[layer], context.batch
    if k.shape[0] != batch.num_tokens:
        k = k[: batch.num_tokens]
    kernels.index_k_write(k, batch.slot_mapping, cache, hadamard=context.hadamard)
    if batch.max_length <= context.index_topk or context.keep_selection:
        return
    live = batch.queries.num_tokens
    if q.shape[0] != live:
        q, w = q[:live], w[:live]
    query, weights = kernels.index_q_prepare(q, w, index_dtype=cache.index_dtype, hadamard=context.hadamard)
    kernels.index_topk(query, weights, cache, batch.queries, context.index_topk)


def _sparse_attention(q: Tensor, latent: int, scale: float, layer: int) -> Tensor:
    context = current_context()
    batch = context.batch.queries
    rows, live = q.shape[0], batch.num_tokens
    out, _ = context.kernels.sparse_mla(
        q[:live] if rows != live else q,
        context.caches[layer],
        batch,
        context.index_topk,
        latent=latent,
        scale=scale,
    )
    if rows == live:
        return out
    padded = q.new_zeros(rows, q.shape[1], latent)
    padded[:live] = out
    return padded


def _moe_experts(x: Tensor, ids: Tensor, weights: Tensor, w13: Tensor, w2: Tensor) -> Tensor:
    return current_context().kernels.moe_experts(x, ids, weights, w13, w2)


_library.impl("mla_cache_write", _mla_cache_write, "CompositeExplicitAutograd")
_library.impl("indexer", _indexer, "CompositeExplicitAutograd")
_library.impl("sparse_attention", _sparse_attention, "CompositeExplicitAutograd")
_library.impl("moe_experts", _moe_experts, "CompositeExplicitAutograd")


@register_fake(f"{NAMESPACE}::mla_cache_write", lib=_library)
def _(c: Tensor, k_pe: Tensor, layer: int) -> None:
    return None


@register_fake(f"{NAMESPACE}::indexer", lib=_library)
def _(q: Tensor, k: Tensor, w: Tensor, layer: int) -> None:
    return None


@register_fake(f"{NAMESPACE}::sparse_attention", lib=_library)
def _(q: Tensor, latent: int, scale: float, layer: int) -> Tensor:
    return q.new_empty(q.shape[0], q.shape[1], latent)


@register_fake(f"{NAMESPACE}::moe_experts", lib=_library)
def _(x: Tensor, ids: Tensor, weights: Tensor, w13: Tensor, w2: Tensor) -> Tensor:
    return torch.empty_like(x)


mla_cache_write = torch.ops.dsa_generic.mla_cache_write.default
indexer = torch.ops.dsa_generic.indexer.default
sparse_attention = torch.ops.dsa_generic.sparse_attention.default
moe_experts = torch.ops.dsa_generic.moe_experts.default

# an op without outputs would otherwise count as dead code
has_side_effect(mla_cache_write)
has_side_effect(indexer)

SPLIT_OPS = (mla_cache_write, indexer, sparse_attention)
# a recorded graph holds what they call, not the ops themselves
RECORDED_OPS = {
    mla_cache_write: _mla_cache_write,
    indexer: _indexer,
    sparse_attention: _sparse_attention,
    moe_experts: _moe_experts,
}
