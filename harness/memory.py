"""How much memory a cell's engine needs, from the sizes in its configuration. Pure."""

from __future__ import annotations

from harness.cell import PAGE, Cell


def needed_bytes(cell: Cell) -> int:
    """Weights and caches; what a step needs on top is small beside them."""
    return cache_bytes(cell) + weight_bytes(cell)


def cache_bytes(cell: Cell) -> int:
    """Main and indexer caches of all layers, at the widest of the requested dtypes."""
    model, engine = cell.model, cell.engine
    width = {"float32": 4, "bf16": 2}.get(engine.kv_dtype if engine.kv_dtype != "auto" else engine.dtype, 1)
    main = 656 if engine.kv_dtype == "fp8_ds_mla" else (model.kv_lora_rank + model.qk_rope_head_dim) * width
    index = model.index_head_dim * width + (4 if width == 1 else 0)
    return engine.kv_pages * PAGE * (main * model.num_hidden_layers + index * sum(model.indexer_full))


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
    layers = m.num_hidden_layers * attention + sum(m.indexer_full) * indexer
    layers += m.first_k_dense_replace * dense + (m.num_hidden_layers - m.first_k_dense_replace) * moe
    return (layers + 2 * m.vocab_size * m.hidden_size) * (4 if cell.engine.dtype == "float32" else 2)
