"""index_topk on Triton: scores of a block of rows into a buffer, then the exact top-k of each row."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from paths.engine.batch import ForwardBatch, LayerCache
from paths.kernels.compile_specs import META, CompileSpec, of_cases, traced
from paths.kernels.mqa_logits.triton_impl import check_paged, mqa_logits_kernel, paged_scores
from paths.kernels.tensors import check_tensor
from paths.kernels.topk.triton_impl import topk

OP = "index_topk"
LOGITS_BYTES = 256 << 20  # scores of one block of rows: 512 rows of 128K keys fill any device


def index_topk(q: Tensor, weights: Tensor, cache: LayerCache, batch: ForwardBatch, k: int) -> None:
    """q `[T, nI, dI]`, weights float32 `[T, nI]`; fills `batch.topk_indices[:T, :k]`.

    The set of every row is exactly that of the definition. Of a row that drops keys the order is by ascending
    index, not best first: attention sums over a set, and neighbours of a page are then read together. Raises
    ValueError.
    """
    tokens = q.shape[0]
    check_tensor(OP, "batch.topk_indices", batch.topk_indices, dtype=torch.int32, shape=(None, None))
    if batch.topk_indices.shape[0] < tokens or not 1 <= k <= batch.topk_indices.shape[1]:
        raise ValueError(
            f"{OP}: batch.topk_indices has shape {tuple(batch.topk_indices.shape)}, "
            f"allowed is at least ({tokens}, {k}) with k of 1 or more"
        )
    out, lengths, req_rows = batch.topk_indices[:tokens, :k], batch.lengths[:tokens], batch.req_rows[:tokens]
    keys, scales = check_paged(OP, q, weights, cache, req_rows, lengths, batch.block_table)
    if batch.max_length <= k:
        topk(torch.empty(tokens, 0, dtype=torch.float32, device=q.device), lengths, k, ordered=False, out=out)
        return
    step = max(1, LOGITS_BYTES // (4 * batch.max_length))
    for start in range(0, tokens, step):
        rows = slice(start, start + step)
        logits = paged_scores(
            q[rows],
            weights[rows],
            keys,
            scales,
            req_rows[rows],
            lengths[rows],
            batch.block_table,
            width=batch.max_length,
            at_least=k,
        )
        topk(logits, lengths[rows], k, ordered=False, out=out[rows])


def compile_specs() -> list[CompileSpec]:
    """Decode and prefill of V3.2 (64 heads) and GLM-5.2 (32), each index dtype; all that the checks run."""
    from paths.kernels.index_topk.cases import check_cases, production_call

    specs = []
    for label, heads in (("v32", 64), ("glm52", 32)):
        for index_dtype in ("bf16", "fp8"):
            for rows in (1, 512):
                call = partial(
                    index_topk, **production_call(index_dtype, heads=heads, rows=rows, device=META)
                )
                must = {mqa_logits_kernel.fn.__name__}
                specs += traced(OP, f"{label}, {index_dtype}, {rows} rows", call, matrix=must)
    return specs + of_cases(OP, index_topk, check_cases())
