"""C++ implementations of the kernel ops for the CPU, built at first use.

`load()` returns an object with one method per op, with the signatures of `paths.kernels.registry.Kernels`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paths.engine.batch import PAGE_SIZE, ForwardBatch, LayerCache
from paths.kernels.cpp.build import NATIVE, PORTABLE, CppUnavailable, Variant, build_library
from paths.kernels.rejection.torch_impl import rejection

__all__ = ["NATIVE", "PORTABLE", "CppKernels", "CppUnavailable", "Variant", "load", "load_operators"]

NAMESPACE = "dsa_paths"


def load_operators(namespace: str, folder: Path, variant: Variant = NATIVE) -> Any:
    """`torch.ops.<namespace>_<variant>` with every `<op>/cpu.cpp` of `folder`. Raises CppUnavailable."""
    name = f"{namespace}_{variant.name}"
    library = build_library(name, sorted(folder.glob("*/cpu.cpp")), variant)
    try:
        torch.ops.load_library(str(library))
    except OSError as error:
        raise CppUnavailable(f"cannot load {library}: {error}") from error
    return getattr(torch.ops, name)


def load(variant: Variant = NATIVE) -> CppKernels:
    """Build and load the shared ops. Raises CppUnavailable with the reason."""
    return CppKernels(load_operators(NAMESPACE, Path(__file__).parents[1], variant))


class CppKernels:
    """The shared ops in C++, for CPU tensors of float32 or bfloat16 with unit inner stride."""

    def __init__(self, operators: Any) -> None:
        # overloads are looked up once: resolving a packet at each call costs as much as a small kernel
        self._rms_norm = operators.rms_norm.default
        self._add_rms_norm = operators.add_rms_norm.default
        self._rope = operators.rope.default
        self._mla_cache_write = operators.mla_cache_write.default
        self._index_k_write = operators.index_k_write.default
        self._index_q_prepare = operators.index_q_prepare.default
        self._index_topk = operators.index_topk.default
        self._sparse_mla = operators.sparse_mla.default
        self._moe_route = operators.moe_route.default
        self._moe_experts = operators.moe_experts.default
        self._greedy_rejection = operators.greedy_rejection.default
        self._prepare_positions = operators.prepare_positions.default
        self._combine_tokens = operators.combine_tokens.default
        self._slot_mapping = operators.slot_mapping.default
        self.gather_block_table = operators.gather_block_table.default
        self.gather_rows = operators.gather_rows.default
        self._post_update = operators.post_update.default
        self._shift_tokens = operators.shift_tokens.default
        self._advance_drafts = operators.advance_drafts.default
        self.select_all = operators.select_all.default
        self.count_nan_rows = operators.count_nan_rows.default
        self.mask_tokens = operators.mask_tokens.default
        self._apply_writes = operators.apply_writes.default

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self._rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return self._add_rms_norm(x, residual, weight, eps)

    def rope(self, x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor, *, interleaved: bool) -> Tensor:
        return self._rope(x, cos, sin, positions, interleaved)

    def mla_cache_write(self, c: Tensor, k_pe: Tensor, slot_mapping: Tensor, cache: LayerCache) -> None:
        self._mla_cache_write(c, k_pe, slot_mapping, cache.kv, cache.kv_dtype, cache.k_scale)

    def index_k_write(self, k: Tensor, slot_mapping: Tensor, cache: LayerCache, *, hadamard: bool) -> None:
        self._index_k_write(k, slot_mapping, cache.index, cache.index_dtype, PAGE_SIZE, hadamard)

    def index_q_prepare(
        self, q: Tensor, w: Tensor, *, index_dtype: str, hadamard: bool
    ) -> tuple[Tensor, Tensor]:
        return self._index_q_prepare(q, w, index_dtype, hadamard)

    def index_topk(self, q: Tensor, w: Tensor, cache: LayerCache, batch: ForwardBatch, k: int) -> None:
        self._index_topk(
            q,
            w,
            cache.index,
            cache.index_dtype,
            PAGE_SIZE,
            batch.lengths,
            batch.req_rows,
            batch.block_table,
            batch.topk_indices,
            k,
        )

    def sparse_mla(
        self, q: Tensor, cache: LayerCache, batch: ForwardBatch, k: int, *, latent: int, scale: float
    ) -> tuple[Tensor, Tensor]:
        return self._sparse_mla(
            q,
            cache.kv,
            cache.kv_dtype,
            cache.k_scale,
            batch.topk_indices,
            k,
            batch.req_rows,
            batch.block_table,
            latent,
            scale,
        )

    def moe_route(
        self,
        x: Tensor,
        gate: Tensor,
        bias: Tensor,
        *,
        n_group: int,
        topk_group: int,
        top_k: int,
        norm: bool,
        scaling: float,
    ) -> tuple[Tensor, Tensor]:
        return self._moe_route(x, gate, bias, n_group, topk_group, top_k, norm, scaling)

    def moe_experts(self, x: Tensor, ids: Tensor, weights: Tensor, w13: Tensor, w2: Tensor) -> Tensor:
        return self._moe_experts(x, ids, weights, w13, w2)

    def rejection(
        self,
        logits: Tensor,
        draft_ids: Tensor,
        draft_probs: Tensor | None,
        *,
        row_starts: Tensor,
        max_drafts: int,
        all_greedy: bool,
        **sampling: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Random requests are verified with torch: their noise and masks dwarf what a call costs."""
        if all_greedy:
            return self._greedy_rejection(logits, draft_ids, row_starts, max_drafts)
        return rejection(
            logits,
            draft_ids,
            draft_probs,
            row_starts=row_starts,
            max_drafts=max_drafts,
            all_greedy=False,
            **sampling,
        )

    def prepare_positions(
        self,
        slots: Tensor,
        query_start: Tensor,
        computed: Tensor,
        *,
        positions: Tensor,
        req_rows: Tensor,
        lengths: Tensor,
        seq_lens: Tensor,
    ) -> None:
        self._prepare_positions(slots, query_start, computed, positions, req_rows, lengths, seq_lens)

    def combine_tokens(
        self,
        slots: Tensor,
        query_start: Tensor,
        logits_start: Tensor,
        positions: Tensor,
        token_ids: Tensor,
        total_len: Tensor,
        draft_tokens: Tensor,
        *,
        input_ids: Tensor,
        logits_rows: Tensor,
        logits_slots: Tensor,
        next_positions: Tensor,
        draft_ids: Tensor,
    ) -> None:
        self._combine_tokens(
            slots,
            query_start,
            logits_start,
            positions,
            token_ids,
            total_len,
            draft_tokens,
            input_ids,
            logits_rows,
            logits_slots,
            next_positions,
            draft_ids,
        )

    def slot_mapping(
        self, positions: Tensor, req_rows: Tensor, lengths: Tensor, block_table: Tensor, *, out: Tensor
    ) -> None:
        self._slot_mapping(positions, req_rows, lengths, block_table, PAGE_SIZE, out)

    def post_update(
        self,
        slots: Tensor,
        query_start: Tensor,
        logits_start: Tensor,
        sampled: Tensor,
        counts: Tensor,
        *,
        computed: Tensor,
        total_len: Tensor,
        token_ids: Tensor,
    ) -> None:
        self._post_update(slots, query_start, logits_start, sampled, counts, computed, total_len, token_ids)

    def shift_tokens(
        self,
        slots: Tensor,
        query_start: Tensor,
        logits_start: Tensor,
        counts: Tensor,
        positions: Tensor,
        token_ids: Tensor,
        *,
        input_ids: Tensor,
        lengths: Tensor,
        slot_mapping: Tensor,
        draft_slots: Tensor,
        last_rows: Tensor,
        last_positions: Tensor,
        last_lengths: Tensor,
    ) -> None:
        self._shift_tokens(
            slots,
            query_start,
            logits_start,
            counts,
            positions,
            token_ids,
            input_ids,
            lengths,
            slot_mapping,
            draft_slots,
            last_rows,
            last_positions,
            last_lengths,
        )

    def advance_drafts(
        self,
        tokens: Tensor,
        draft_slots: Tensor,
        last_positions: Tensor,
        limits: Tensor,
        block_table: Tensor,
        *,
        step: int,
        draft_tokens: Tensor,
        input_ids: Tensor,
        positions: Tensor,
        lengths: Tensor,
        slot_mapping: Tensor,
        req_rows: Tensor,
    ) -> None:
        self._advance_drafts(
            tokens,
            draft_slots,
            last_positions,
            limits,
            block_table,
            step,
            PAGE_SIZE,
            draft_tokens,
            input_ids,
            positions,
            lengths,
            slot_mapping,
            req_rows,
        )

    def apply_writes(self, state: Tensor, writes: Tensor, values: Tensor, *, longest: int) -> None:
        self._apply_writes(state, writes, values, longest)
