"""What the bench runs: every op at DeepSeek-V3.2's production shapes, with the bytes and operations it needs.

Decode is 64 requests with 32K keys each, prefill one chunk of 4096 rows. Bytes count what must move, once:
what a kernel reads again, or writes and reads between its launches, counts against it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from paths.engine.batch import PAGE_SIZE, ForwardBatch, LayerCache
from paths.kernels.layouts import E4M3
from paths.kernels.tools.roofline import Cost

HIDDEN, QUERY_RANK, LATENT, ROPE, NOPE, VALUE = 7168, 1536, 512, 64, 128, 128
HEADS, INDEX_HEADS, INDEX_DIM, TOP_K = 128, 64, 128, 2048
EXPERTS, CHOSEN, EXPERT_WIDTH, VOCABULARY = 256, 8, 2048, 129280
DECODE, PREFILL, KEYS = 64, 4096, 32768
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
KV_ROW = {"bf16": 2 * (LATENT + ROPE), "fp8_ds_mla": 656}
INDEX_ROW = INDEX_DIM + 4


@dataclass(frozen=True, kw_only=True)
class Workload:
    """`arguments(device)` makes positional and keyword arguments of the op's Triton launcher."""

    op: str
    label: str
    cost: Cost
    arguments: Callable[[torch.device], Arguments]
    function: str | None = None


def workloads() -> list[Workload]:
    from paths.kernels.tools.step_workloads import step_workloads  # here: it is made of what stands below

    model = [*_rows(), *_cache_writes(), *_indexer(), *_attention(), *_experts(), *_fused(), *_sampling()]
    return [*model, *step_workloads()]


def bf16(device: torch.device, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.bfloat16, device=device)


def f32(device: torch.device, *shape: int) -> Tensor:
    return torch.rand(shape, device=device)


def _e4m3(device: torch.device, *shape: int) -> Tensor:
    return torch.randn(shape, device=device).to(E4M3)


def _below(device: torch.device, high: int, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.randint(high, shape, dtype=dtype, device=device)


def _rotary_tables(device: torch.device) -> tuple[Tensor, Tensor]:
    return f32(device, KEYS, ROPE // 2), f32(device, KEYS, ROPE // 2)


def _batch(device: torch.device, rows: int, requests: int) -> ForwardBatch:
    """`rows` of `requests` that hold KEYS keys each, all rows at their request's end."""
    pages = KEYS // PAGE_SIZE
    table = torch.arange(1, requests * pages + 1, dtype=torch.int32, device=device).view(requests, pages)
    return ForwardBatch(
        input_ids=_below(device, VOCABULARY, rows, dtype=torch.int64),
        positions=_below(device, KEYS, rows, dtype=torch.int64),
        slot_mapping=PAGE_SIZE + torch.arange(rows, device=device),
        req_rows=torch.arange(requests, dtype=torch.int32, device=device).repeat_interleave(rows // requests),
        lengths=torch.full((rows,), KEYS, dtype=torch.int32, device=device),
        block_table=table,
        topk_indices=_below(device, KEYS, rows, TOP_K),
        max_length=KEYS,
    )


def _cache(device: torch.device, requests: int, kv_dtype: str = "fp8_ds_mla") -> LayerCache:
    blocks = requests * KEYS // PAGE_SIZE + 1
    element = torch.uint8 if kv_dtype == "fp8_ds_mla" else torch.bfloat16
    width = KV_ROW[kv_dtype] // element.itemsize
    return LayerCache(
        kv=torch.zeros(blocks, PAGE_SIZE, width, dtype=element, device=device),
        kv_dtype=kv_dtype,
        k_scale=torch.ones((), device=device),
        index=torch.zeros(blocks, PAGE_SIZE * INDEX_ROW, dtype=torch.uint8, device=device),
        index_dtype="fp8",
    )


def _rows() -> list[Workload]:
    values = PREFILL * HIDDEN * 2

    def norm(d: torch.device) -> Arguments:
        return (bf16(d, PREFILL, HIDDEN), f32(d, HIDDEN), 1e-6), {}

    def add_norm(d: torch.device) -> Arguments:
        return (bf16(d, PREFILL, HIDDEN), bf16(d, PREFILL, HIDDEN), f32(d, HIDDEN), 1e-6), {}

    def embed(d: torch.device) -> Arguments:
        ids = _below(d, VOCABULARY, PREFILL, dtype=torch.int64)
        return (ids, bf16(d, VOCABULARY, HIDDEN), f32(d, HIDDEN), 1e-6), {}

    def rotate(d: torch.device) -> Arguments:
        query = bf16(d, PREFILL, HEADS, NOPE + ROPE)[..., NOPE:]
        positions = _below(d, KEYS, PREFILL, dtype=torch.int64)
        return (query, *_rotary_tables(d), positions), {"interleaved": True}

    rotated = PREFILL * (2 * HEADS * ROPE * 2 + ROPE * 4)
    label = f"{PREFILL} rows"
    return [
        Workload(op="rms_norm", label=label, cost=Cost(bytes=2 * values), arguments=norm),
        Workload(op="add_rms_norm", label=label, cost=Cost(bytes=4 * values), arguments=add_norm),
        Workload(op="embed_norm", label=label, cost=Cost(bytes=3 * values), arguments=embed),
        Workload(op="rope", label=f"{label}, {HEADS} heads", cost=Cost(bytes=rotated), arguments=rotate),
    ]


def _cache_writes() -> list[Workload]:
    def slots(d: torch.device) -> Tensor:
        return PAGE_SIZE + torch.arange(PREFILL, device=d)

    def main(d: torch.device, kv_dtype: str) -> Arguments:
        return (bf16(d, PREFILL, LATENT), bf16(d, PREFILL, ROPE), slots(d), _cache(d, 1, kv_dtype)), {}

    def index(d: torch.device) -> Arguments:
        return (bf16(d, PREFILL, INDEX_DIM), slots(d), _cache(d, 1)), {"hadamard": True}

    def query(d: torch.device) -> Arguments:
        q, w = bf16(d, PREFILL, INDEX_HEADS, INDEX_DIM), bf16(d, PREFILL, INDEX_HEADS)
        return (q, w), {"index_dtype": "fp8", "hadamard": True}

    token = 2 * (LATENT + ROPE) + 8
    index_query = INDEX_HEADS * (2 * INDEX_DIM + 2 + INDEX_DIM + 4)
    return [
        *(
            Workload(
                op="mla_cache_write",
                label=f"{PREFILL} rows, {kv_dtype}",
                cost=Cost(bytes=PREFILL * (token + row)),
                arguments=partial(main, kv_dtype=kv_dtype),
            )
            for kv_dtype, row in KV_ROW.items()
        ),
        Workload(
            op="index_k_write",
            label=f"{PREFILL} rows, fp8",
            cost=Cost(bytes=PREFILL * (2 * INDEX_DIM + 8 + INDEX_ROW)),
            arguments=index,
        ),
        Workload(
            op="index_q_prepare",
            label=f"{PREFILL} rows, fp8",
            cost=Cost(bytes=PREFILL * index_query),
            arguments=query,
        ),
    ]


def _indexer() -> list[Workload]:
    keys = DECODE * KEYS
    products = 2 * INDEX_HEADS * INDEX_DIM
    query_bytes = INDEX_HEADS * (INDEX_DIM + 4)

    def prefill(d: torch.device) -> Arguments:
        q, w = _e4m3(d, PREFILL, INDEX_HEADS, INDEX_DIM), f32(d, PREFILL, INDEX_HEADS)
        starts = torch.zeros(PREFILL, dtype=torch.int32, device=d)
        ends = torch.arange(KEYS - PREFILL + 1, KEYS + 1, dtype=torch.int32, device=d)
        return (q, w, _e4m3(d, KEYS, INDEX_DIM), f32(d, KEYS), starts, ends), {"width": KEYS}

    def decode(d: torch.device) -> Arguments:
        q, w = _e4m3(d, DECODE, INDEX_HEADS, INDEX_DIM), f32(d, DECODE, INDEX_HEADS)
        batch = _batch(d, DECODE, DECODE)
        rows = (batch.req_rows, batch.lengths, batch.block_table)
        return (q, w, _cache(d, DECODE), *rows), {"width": KEYS}

    def select(d: torch.device) -> Arguments:
        q, w = _e4m3(d, DECODE, INDEX_HEADS, INDEX_DIM), f32(d, DECODE, INDEX_HEADS)
        return (q, w, _cache(d, DECODE), _batch(d, DECODE, DECODE), TOP_K), {}

    def rank(d: torch.device) -> Arguments:
        lengths = torch.full((DECODE,), 4 * KEYS, dtype=torch.int32, device=d)
        return (f32(d, DECODE, 4 * KEYS), lengths, TOP_K), {}

    def to_slot(d: torch.device) -> Arguments:
        batch = _batch(d, PREFILL, 1)
        return (batch.topk_indices, batch.req_rows, batch.block_table), {}

    causal = PREFILL * (KEYS - PREFILL / 2)
    scored = DECODE * query_bytes + keys * INDEX_ROW
    return [
        Workload(
            op="mqa_logits",
            label=f"prefill, {PREFILL} rows × {KEYS} keys",
            cost=Cost(
                bytes=PREFILL * query_bytes + KEYS * INDEX_ROW + 4 * causal,
                flops=products * causal,
                operand="fp8",
            ),
            arguments=prefill,
        ),
        Workload(
            op="mqa_logits",
            label=f"decode, {DECODE} × {KEYS} keys",
            cost=Cost(bytes=scored + 4 * keys, flops=products * keys, operand="fp8"),
            arguments=decode,
            function="paged_mqa_logits",
        ),
        Workload(
            op="index_topk",
            label=f"decode, {DECODE} × {KEYS} keys",
            cost=Cost(bytes=scored + 4 * DECODE * TOP_K, flops=products * keys, operand="fp8"),
            arguments=select,
        ),
        Workload(
            op="topk",
            label=f"{DECODE} rows of {4 * KEYS}",
            cost=Cost(bytes=DECODE * 4 * (4 * KEYS + TOP_K)),
            arguments=rank,
        ),
        Workload(
            op="index_to_slot",
            label=f"{PREFILL} rows of {TOP_K}",
            cost=Cost(bytes=PREFILL * TOP_K * (4 + 8)),
            arguments=to_slot,
        ),
    ]


def _attention() -> list[Workload]:
    def sparse(d: torch.device, rows: int, requests: int, kv_dtype: str) -> Arguments:
        q = bf16(d, rows, HEADS, LATENT + ROPE)
        arguments = (q, _cache(d, requests, kv_dtype), _batch(d, rows, requests), TOP_K)
        return arguments, {"latent": LATENT, "scale": 0.1352337788608801}

    def sparse_cost(rows: int, requests: int, kv_dtype: str) -> Cost:
        # rows of one request share its keys: each moves once at most
        keys = min(rows * TOP_K, requests * KEYS)
        heads = rows * HEADS * (2 * (LATENT + ROPE) + 2 * LATENT + 4)
        flops = 2 * rows * HEADS * TOP_K * (2 * LATENT + ROPE)
        return Cost(bytes=keys * KV_ROW[kv_dtype] + heads + 4 * rows * TOP_K, flops=flops)

    def dense(d: torch.device) -> Arguments:
        q, k = (bf16(d, PREFILL, HEADS, NOPE + ROPE) for _ in range(2))
        starts = torch.tensor([0, PREFILL], dtype=torch.int32, device=d)
        scale = (NOPE + ROPE) ** -0.5
        v = bf16(d, PREFILL, HEADS, VALUE)
        return (q, k, v, starts, starts), {"scale": scale, "max_queries": PREFILL}

    width = NOPE + ROPE
    dense_cost = Cost(
        bytes=PREFILL * HEADS * (2 * (2 * width + 2 * VALUE) + 4),
        flops=PREFILL * PREFILL * HEADS * (width + VALUE),  # half of 2 × T² for causality
    )
    shapes = (("decode", DECODE, DECODE), ("prefill", PREFILL, 1))
    return [
        *(
            Workload(
                op="sparse_mla",
                label=f"{label}, {rows} rows, {kv_dtype}",
                cost=sparse_cost(rows, requests, kv_dtype),
                arguments=partial(sparse, rows=rows, requests=requests, kv_dtype=kv_dtype),
            )
            for label, rows, requests in shapes
            for kv_dtype in KV_ROW
        ),
        Workload(op="dense_mha", label=f"{PREFILL} rows", cost=dense_cost, arguments=dense),
    ]


def expert_cost(rows: int) -> Cost:
    """Of `rows` tokens that take CHOSEN experts each, and the shared one."""
    touched = EXPERTS * (1 - (1 - CHOSEN / EXPERTS) ** rows) + 1  # expected, for uniform routing
    weights = touched * 3 * EXPERT_WIDTH * HIDDEN * 2
    flops = 2 * rows * (CHOSEN + 1) * 3 * EXPERT_WIDTH * HIDDEN
    return Cost(bytes=weights + 4 * rows * HIDDEN, flops=flops)


def _experts() -> list[Workload]:
    joined = EXPERTS + 1  # the shared expert is one more that every row takes

    def ids(d: torch.device, rows: int) -> Tensor:
        chosen = torch.rand(rows, EXPERTS, device=d).argsort(1)[:, :CHOSEN].int()
        return torch.cat([chosen, chosen.new_full((rows, 1), EXPERTS)], dim=1)

    def experts(d: torch.device, rows: int) -> Arguments:
        w13, w2 = bf16(d, joined, 2 * EXPERT_WIDTH, HIDDEN), bf16(d, joined, HIDDEN, EXPERT_WIDTH)
        return (bf16(d, rows, HIDDEN), ids(d, rows), f32(d, rows, CHOSEN + 1), w13, w2), {}

    def route(d: torch.device) -> Arguments:
        sizes: dict[str, Any] = {"n_group": 8, "topk_group": 4, "top_k": CHOSEN, "norm": True, "scaling": 2.5}
        return (bf16(d, PREFILL, HIDDEN), f32(d, EXPERTS, HIDDEN), f32(d, EXPERTS)), sizes

    def sort(d: torch.device) -> Arguments:
        return (ids(d, PREFILL),), {"num_experts": joined, "tile": 64}

    routed = Cost(
        bytes=2 * PREFILL * HIDDEN + 4 * EXPERTS * HIDDEN + 8 * PREFILL * CHOSEN,
        flops=2 * PREFILL * EXPERTS * HIDDEN,
        operand="float32",
    )
    choices = PREFILL * (CHOSEN + 1)
    sorted_ = Cost(bytes=4 * choices + 4 * (choices + joined * 32))  # half a tile of padding per expert
    label = f"{PREFILL} rows"
    return [
        *(
            Workload(
                op="moe_experts",
                label=f"{rows} rows",
                cost=expert_cost(rows),
                arguments=partial(experts, rows=rows),
            )
            for rows in (DECODE, PREFILL)
        ),
        Workload(op="moe_route", label=label, cost=routed, arguments=route),
        Workload(op="moe_sort", label=label, cost=sorted_, arguments=sort),
    ]


def _fused() -> list[Workload]:
    from paths.dsa_mrv2.kernels.arguments import LatentNorms, Rotary

    def rotary(d: torch.device) -> Rotary:
        cos, sin = _rotary_tables(d)
        return Rotary(cos=cos, sin=sin, interleaved=True, index_interleaved=False)

    def norm_rope(d: torch.device) -> Arguments:
        projected = bf16(d, PREFILL, QUERY_RANK + LATENT + ROPE + INDEX_DIM + INDEX_HEADS)
        norms = LatentNorms(
            q=f32(d, QUERY_RANK),
            kv=f32(d, LATENT),
            eps=1e-6,
            index_weight=f32(d, INDEX_DIM),
            index_bias=f32(d, INDEX_DIM),
        )
        return (projected, norms, rotary(d), _batch(d, PREFILL, 1), _cache(d, 1)), {"hadamard": True}

    def query(d: torch.device) -> Arguments:
        projected = bf16(d, PREFILL, HEADS * (NOPE + ROPE) + INDEX_HEADS * INDEX_DIM)
        positions = _below(d, KEYS, PREFILL, dtype=torch.int64)
        w_uk, weights = bf16(d, HEADS, NOPE, LATENT), bf16(d, PREFILL, INDEX_HEADS)
        sizes: dict[str, Any] = {"index_dim": INDEX_DIM, "index_dtype": "fp8", "hadamard": True}
        return (projected, w_uk, rotary(d), positions, weights), sizes

    read = 2 * (QUERY_RANK + LATENT + ROPE + INDEX_DIM)
    written = 2 * QUERY_RANK + KV_ROW["fp8_ds_mla"] + INDEX_ROW + 4 * TOP_K
    query_read = 2 * (HEADS * (NOPE + ROPE) + INDEX_HEADS * (INDEX_DIM + 1))
    query_written = 2 * HEADS * (LATENT + ROPE) + INDEX_HEADS * (INDEX_DIM + 4)
    label = f"{PREFILL} rows, fp8"
    return [
        Workload(
            op="fused_norm_rope",
            label=label,
            cost=Cost(bytes=PREFILL * (read + written)),
            arguments=norm_rope,
        ),
        Workload(
            op="fused_q",
            label=f"{label}, with the absorbing GEMM",
            cost=Cost(
                bytes=PREFILL * (query_read + query_written) + 2 * HEADS * NOPE * LATENT,
                flops=2 * PREFILL * HEADS * NOPE * LATENT,
            ),
            arguments=query,
        ),
    ]


def _sampling() -> list[Workload]:
    rows = 1024

    def parameters(d: torch.device) -> dict[str, Any]:
        return {
            "temperature": torch.ones(rows, device=d),
            "top_k": torch.zeros(rows, dtype=torch.int32, device=d),
            "top_p": torch.ones(rows, device=d),
            "seeds": torch.arange(rows, device=d),
            "positions": torch.arange(rows, device=d),
            "all_greedy": False,
        }

    def sample(d: torch.device) -> Arguments:
        return (f32(d, rows, VOCABULARY),), parameters(d)

    cost = Cost(bytes=4 * rows * VOCABULARY)
    return [Workload(op="sample", label=f"{rows} rows of {VOCABULARY}", cost=cost, arguments=sample)]
