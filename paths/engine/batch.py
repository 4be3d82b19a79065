"""The inputs of one model step, and the caches it reads and writes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

PAGE_SIZE = 64
NULL_BLOCK = 0  # never owned by a request: padding rows of a block table point here


@dataclass(frozen=True, kw_only=True)
class ForwardBatch:
    """T token rows of one step. Rows of one request stand together, in position order.

    A padding row has slot −1 and length 0: it writes nothing, sees no key and selects nothing.
    `lengths[t]` is the number of keys that row t sees, itself included (position + 1 for a live row).
    """

    input_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    slot_mapping: Tensor  # [T] int64: block × PAGE_SIZE + offset, −1 writes nothing
    req_rows: Tensor  # [T] int32: row of `block_table` that the token belongs to
    lengths: Tensor  # [T] int32
    block_table: Tensor  # [rows, max_blocks] int32, unit inner stride
    topk_indices: Tensor  # [T, index_topk] int32: request-local positions, −1 unused; kept across layers
    max_length: int  # largest of `lengths`, known on the host
    wanted: WantedRows | None = None  # None: all rows

    @property
    def num_tokens(self) -> int:
        return self.input_ids.shape[0]

    @property
    def queries(self) -> ForwardBatch:
        """The rows that attend, and whose states a forward pass returns."""
        return self if self.wanted is None else self.wanted.batch

    def first(self, rows: int) -> ForwardBatch:
        """The first `rows` as a batch, in which all are wanted."""
        return replace(
            self,
            input_ids=self.input_ids[:rows],
            positions=self.positions[:rows],
            slot_mapping=self.slot_mapping[:rows],
            req_rows=self.req_rows[:rows],
            lengths=self.lengths[:rows],
            topk_indices=self.topk_indices[:rows],
            wanted=None,
        )


@dataclass(frozen=True, kw_only=True)
class WantedRows:
    """The N rows of a batch whose states are used; the others only leave their keys."""

    rows: Tensor  # [N] int64, their numbers in the batch
    batch: ForwardBatch  # the same rows as a batch that writes nothing: slots are −1


@dataclass(frozen=True, kw_only=True)
class LayerCache:
    """One layer's paged caches; layouts in `paths.kernels.layouts`.

    kv_dtype    kv tensor
    float32     float32 [blocks, page, C + R]
    bf16        bfloat16 [blocks, page, C + R]
    fp8         float8_e4m3fn [blocks, page, C + R], value = stored × k_scale
    fp8_ds_mla  uint8 [blocks, page, C + 4 × C/128 + 2 × R] = 656 bytes for C 512, R 64

    index_dtype index tensor (None on a layer that shares its indexer)
    float32     float32 [blocks, page, dI]
    bf16        bfloat16 [blocks, page, dI]
    fp8         uint8 [blocks, page × (dI + 4)]: all keys of a block first, then all float32 scales
    """

    kv: Tensor
    kv_dtype: str
    k_scale: Tensor  # [] float32; 1.0 unless kv_dtype is fp8
    index: Tensor | None
    index_dtype: str


def padding_batch(rows: int, index_topk: int, device: torch.device) -> ForwardBatch:
    """A batch of padding rows: it runs every operation, writes no cache and sees no key."""

    def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return ForwardBatch(
        input_ids=zeros(rows, dtype=torch.int64),
        positions=zeros(rows, dtype=torch.int64),
        slot_mapping=torch.full((rows,), -1, dtype=torch.int64, device=device),
        req_rows=zeros(rows, dtype=torch.int32),
        lengths=zeros(rows, dtype=torch.int32),
        block_table=torch.full((1, 1), NULL_BLOCK, dtype=torch.int32, device=device),
        topk_indices=torch.full((rows, index_topk), -1, dtype=torch.int32, device=device),
        max_length=0,
    )


def half_wanted(batch: ForwardBatch) -> ForwardBatch:
    """Padding rows, of which the first half is wanted, and at least one."""
    count = max(1, batch.num_tokens // 2)
    rows = torch.arange(count, device=batch.positions.device)
    return replace(batch, wanted=WantedRows(rows=rows, batch=batch.first(count)))


def torch_dtype(name: str) -> torch.dtype:
    """`bf16` or `float32` as torch spells it."""
    return {"bf16": torch.bfloat16, "float32": torch.float32}[name]
