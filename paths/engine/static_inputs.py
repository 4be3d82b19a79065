"""A step's input tensors: one place for life, so that a captured graph finds them again."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from paths.engine.batch import NULL_BLOCK, ForwardBatch, WantedRows
from paths.graphs.shape import BatchShape


class StaticInputs:
    """Filled in place by a runner; a step uses the first T token rows and R request rows.

    Attributes cannot be rebound: a graph would go on reading the old storage.
    """

    input_ids: Tensor  # [max_tokens] int64
    positions: Tensor  # [max_tokens] int64
    slot_mapping: Tensor  # [max_tokens] int64
    req_rows: Tensor  # [max_tokens] int32
    lengths: Tensor  # [max_tokens] int32
    topk_indices: Tensor  # [max_tokens, index_topk] int32
    _ids_positions: Tensor  # [2, max_tokens]
    _rows_lengths: Tensor  # [2, max_tokens]
    seq_lens: Tensor  # [max_reqs] int32
    block_table: Tensor  # [max_reqs, max_blocks] int32

    def __init__(
        self, *, max_tokens: int, max_reqs: int, max_blocks: int, index_topk: int, device: torch.device
    ) -> None:
        def filled(*shape: int, dtype: torch.dtype, value: int = 0) -> Tensor:
            return torch.full(shape, value, dtype=dtype, device=device)

        # what padding makes zero stands together: one fill each
        ids_positions = filled(2, max_tokens, dtype=torch.int64)
        rows_lengths = filled(2, max_tokens, dtype=torch.int32)
        self.__dict__.update(
            _ids_positions=ids_positions,
            _rows_lengths=rows_lengths,
            input_ids=ids_positions[0],
            positions=ids_positions[1],
            slot_mapping=filled(max_tokens, dtype=torch.int64, value=-1),
            req_rows=rows_lengths[0],
            lengths=rows_lengths[1],
            topk_indices=filled(max_tokens, index_topk, dtype=torch.int32, value=-1),
            seq_lens=filled(max_reqs, dtype=torch.int32),
            block_table=filled(max_reqs, max_blocks, dtype=torch.int32, value=NULL_BLOCK),
        )

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name}: static inputs are written in place, never rebound")

    @property
    def device(self) -> torch.device:
        return self.input_ids.device

    @property
    def max_tokens(self) -> int:
        return self.input_ids.shape[0]

    @property
    def max_reqs(self) -> int:
        return self.seq_lens.shape[0]

    @property
    def index_topk(self) -> int:
        return self.topk_indices.shape[1]

    def tensors(self) -> dict[str, Tensor]:
        """All buffers by name."""
        return dict(self.__dict__)

    def batch(self, shape: BatchShape) -> ForwardBatch:
        """Views of the live rows."""
        return self.padded(shape.num_tokens, shape.num_reqs, max_length=shape.max_length)

    def num_queries(self, num_tokens: int, num_reqs: int) -> int:
        """Request rows of a graph: a PIECEWISE one (num_reqs 0) fits any number, so it has the most."""
        return num_reqs or min(num_tokens, self.max_reqs)

    def num_outputs(self, shape: BatchShape) -> int:
        """Rows of the states that a forward pass over `batch(shape)` returns."""
        return shape.num_tokens

    def padded(self, num_tokens: int, num_reqs: int, *, max_length: int) -> ForwardBatch:
        """Views of the first rows, live or padding."""
        return ForwardBatch(
            input_ids=self.input_ids[:num_tokens],
            positions=self.positions[:num_tokens],
            slot_mapping=self.slot_mapping[:num_tokens],
            req_rows=self.req_rows[:num_tokens],
            lengths=self.lengths[:num_tokens],
            block_table=self.block_table[:num_reqs],
            topk_indices=self.topk_indices[:num_tokens],
            max_length=max_length,
        )

    def clear(self) -> None:
        """Make every row padding."""
        nothing = BatchShape(num_tokens=0, num_reqs=0, query_len=None, max_length=0)
        self.pad(nothing, num_tokens=self.max_tokens, num_reqs=self.max_reqs)

    def pad(self, shape: BatchShape, *, num_tokens: int, num_reqs: int) -> None:
        """Make the rows past the live ones padding: they write nothing and see no key."""
        tokens, reqs = num_tokens - shape.num_tokens, num_reqs - shape.num_reqs
        if tokens > 0:
            self._ids_positions.narrow(1, shape.num_tokens, tokens).zero_()
            self._rows_lengths.narrow(1, shape.num_tokens, tokens).zero_()
            self.slot_mapping.narrow(0, shape.num_tokens, tokens).fill_(-1)
        if reqs > 0:
            self.seq_lens.narrow(0, shape.num_reqs, reqs).zero_()
            self.block_table.narrow(0, shape.num_reqs, reqs).fill_(NULL_BLOCK)


class DraftInputs(StaticInputs):
    """The buffers of `of`, shared, the hidden states that a draft starts from, and where requests end."""

    hidden: Tensor  # [max_tokens, Dm]
    last_rows: Tensor  # [max_reqs] int64: of each request its last live row, 0 where nothing is drafted
    last_positions: Tensor  # [max_reqs] int64: of that row
    last_lengths: Tensor  # [max_reqs] int32: of that row, 0 where nothing is drafted

    def __init__(self, of: StaticInputs, *, hidden_size: int, dtype: torch.dtype) -> None:
        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=of.device)

        self.__dict__.update(
            of.tensors(),
            hidden=zeros(of.max_tokens, hidden_size, dtype=dtype),
            last_rows=zeros(of.max_reqs, dtype=torch.int64),
            last_positions=zeros(of.max_reqs, dtype=torch.int64),
            last_lengths=zeros(of.max_reqs, dtype=torch.int32),
        )

    def pad(self, shape: BatchShape, *, num_tokens: int, num_reqs: int) -> None:
        """As for any step; hidden states of padding rows are 0."""
        super().pad(shape, num_tokens=num_tokens, num_reqs=num_reqs)
        if num_tokens > shape.num_tokens:
            self.hidden[shape.num_tokens : num_tokens].zero_()


class FirstDraftInputs(DraftInputs):
    """The buffers of `of` as inputs of draft 0, which is asked for the state of each request's last row."""

    _request_rows: Tensor  # [max_reqs] int32: 0, 1, …
    _no_ids: Tensor  # [max_reqs] int64
    _no_slots: Tensor  # [max_reqs] int64

    def __init__(self, of: DraftInputs) -> None:
        rows = torch.arange(of.max_reqs, dtype=torch.int32, device=of.device)
        self.__dict__.update(
            of.tensors(),
            _request_rows=rows,
            _no_ids=torch.zeros_like(rows, dtype=torch.int64),
            _no_slots=torch.full_like(rows, -1, dtype=torch.int64),
        )

    def num_outputs(self, shape: BatchShape) -> int:
        """One row per request."""
        return shape.num_reqs

    def padded(self, num_tokens: int, num_reqs: int, *, max_length: int) -> ForwardBatch:
        """The selection of the wanted rows stands where drafts of one row per request look for theirs: in the
        first rows of the batch's own, which a pass over wanted rows does not write.
        """
        batch = super().padded(num_tokens, num_reqs, max_length=max_length)
        last = ForwardBatch(
            input_ids=self._no_ids[:num_reqs],
            positions=self.last_positions[:num_reqs],
            slot_mapping=self._no_slots[:num_reqs],
            req_rows=self._request_rows[:num_reqs],
            lengths=self.last_lengths[:num_reqs],
            block_table=batch.block_table,
            topk_indices=self.topk_indices[:num_reqs],
            max_length=max_length,
        )
        return replace(batch, wanted=WantedRows(rows=self.last_rows[:num_reqs], batch=last))

    def pad(self, shape: BatchShape, *, num_tokens: int, num_reqs: int) -> None:
        """Padding requests want row 0, and see no key there."""
        num_reqs = self.num_queries(num_tokens, num_reqs)
        super().pad(shape, num_tokens=num_tokens, num_reqs=num_reqs)
        if num_reqs > shape.num_reqs:
            for buffer in (self.last_rows, self.last_positions, self.last_lengths):
                buffer[shape.num_reqs : num_reqs].zero_()
