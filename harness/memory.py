"""How much memory a cell's engine needs, from the sizes in its configuration. Pure."""

from __future__ import annotations

from harness.cell import Cell
from paths.kernels import cache_bytes as layout

# a layer's weights and the fused or permuted copies that a path makes of them exist together while it loads
_COPIES_WHILE_LOADING = 2


def needed_bytes(cell: Cell) -> int:
    """Weights while they load, and caches; what a step needs on top is small beside them."""
    return cache_bytes(cell) + _COPIES_WHILE_LOADING * weight_bytes(cell)


def cache_bytes(cell: Cell) -> int:
    """Main and indexer caches of all layers, in the dtypes that the engine resolves."""
    engine = cell.engine
    kv_dtype = layout.resolve_kv_dtype(engine.kv_dtype, engine.dtype)
    index_dtype = layout.resolve_index_dtype(engine.index_dtype, kv_dtype=kv_dtype, dtype=engine.dtype)
    return layout.cache_bytes(
        cell.model,
        pages=engine.kv_pages,
        kv_dtype=kv_dtype,
        index_dtype=index_dtype,
        mtp_layers=cell.model.mtp_layers(engine.mtp),
    )


def weight_bytes(cell: Cell) -> int:
    """Bytes of the weights in the requested dtype, from the sizes in the configuration (norms left out)."""
    m = cell.model
    attention = (
        m.hidden_size * (m.q_lora_rank + m.kv_lora_rank + m.qk_rope_head_dim)
        + m.q_lora_rank * m.num_attention_heads * m.qk_head_dim
        + m.kv_lora_rank * m.num_attention_heads * (m.qk_nope_head_dim + m.v_head_dim)
        + m.num_attention_heads * m.v_head_dim * m.hidden_size
    )
    indexer = m.q_lora_rank * m.index_n_heads * m.index_head_dim + m.hidden_size * (
        m.index_head_dim + m.index_n_heads
    )
    dense = 3 * m.hidden_size * m.intermediate_size
    moe = 3 * m.hidden_size * m.moe_intermediate_size * (m.n_routed_experts + m.n_shared_experts)
    sparse_layers = m.num_hidden_layers - m.first_k_dense_replace
    layers = m.num_hidden_layers * attention + sum(m.indexer_full) * indexer
    layers += m.first_k_dense_replace * dense + sparse_layers * moe
    width = {"float32": 4, "bf16": 2}[cell.engine.dtype]
    router = 4 * sparse_layers * m.n_routed_experts * m.hidden_size  # float32 in every dtype
    return (layers + 2 * m.vocab_size * m.hidden_size) * width + router
