"""Drives a model without an engine: paged caches full of NaN, shuffled block tables, any mix of chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from paths.engine.batch import PAGE_SIZE, ForwardBatch
from paths.engine.parallel import ParallelGroup
from paths.kernels.layouts import allocate_caches
from paths.kernels.registry import Kernels
from paths.models.config import ModelConfig
from paths.models.weights import Weights

CPU = torch.device("cpu")


def build_model(
    model_class,
    config: ModelConfig,
    weights: Weights,
    *,
    kernels: Kernels | None = None,
    dtype: torch.dtype = torch.float32,
    hadamard: bool = False,
    max_model_len: int = 256,
    **options,
):
    """A model of any path, with torch kernels unless others are given."""
    return model_class(
        config,
        weights,
        kernels or Kernels(CPU, "torch"),
        dtype=dtype,
        group=ParallelGroup(),
        hadamard=hadamard,
        max_model_len=max_model_len,
        **options,
    )


class ModelDriver:
    """Holds the caches and block tables of a few sequences."""

    def __init__(
        self,
        model,
        config: ModelConfig,
        *,
        kv_dtype: str = "float32",
        index_dtype: str = "float32",
        max_len: int = 192,
        max_seqs: int = 4,
        seed: int = 0,
        mtp_layers: int = 0,
    ) -> None:
        self.model, self.config = model, config
        pages = -(-max_len // PAGE_SIZE)
        self.caches = allocate_caches(
            config,
            num_blocks=1 + max_seqs * pages,
            kv_dtype=kv_dtype,
            index_dtype=index_dtype,
            device=CPU,
            mtp_layers=mtp_layers,
        )
        for cache in self.caches:
            for tensor in (cache.kv, cache.index):
                if tensor is not None:
                    tensor.view(torch.uint8).fill_(0xFF)  # NaN in every dtype
        order = torch.randperm(max_seqs * pages, generator=torch.Generator().manual_seed(seed)) + 1
        self.block_table = order.int().view(max_seqs, pages)
        self.lengths = [0] * max_seqs

    def step(self, work: Mapping[int, Sequence[int]], *, padding: int = 0) -> dict[int, Tensor]:
        """Feed the next tokens of each sequence; log-probs float32 `[n, V]` of every row, by sequence."""
        batch = self.batch(work, padding=padding)
        hidden = self.model.forward(batch, self.caches)
        scores = self.model.logits(hidden).log_softmax(-1)
        sizes = [len(tokens) for tokens in work.values()]
        parts = scores[: sum(sizes)].split(sizes)
        for seq, size in zip(work, sizes, strict=True):
            self.lengths[seq] += size
        return dict(zip(work, parts, strict=True))

    def batch(self, work: Mapping[int, Sequence[int]], *, padding: int = 0) -> ForwardBatch:
        """The inputs of a step; `padding` rows of slot -1 and length 0 stand behind the live ones."""
        seqs = torch.tensor([seq for seq, tokens in work.items() for _ in tokens], dtype=torch.int64)
        positions = torch.tensor(
            [self.lengths[seq] + i for seq, tokens in work.items() for i in range(len(tokens))],
            dtype=torch.int64,
        )
        blocks = self.block_table[seqs, positions // PAGE_SIZE].long()
        lengths = positions + 1

        def pad(values: Tensor, fill: int) -> Tensor:
            return torch.cat([values, values.new_full((padding,), fill)])

        return ForwardBatch(
            input_ids=pad(
                torch.tensor([t for tokens in work.values() for t in tokens], dtype=torch.int64), 0
            ),
            positions=pad(positions, 0),
            slot_mapping=pad(blocks * PAGE_SIZE + positions % PAGE_SIZE, -1),
            req_rows=pad(seqs, 0).int(),
            lengths=pad(lengths, 0).int(),
            block_table=self.block_table,
            topk_indices=torch.full((len(seqs) + padding, self.config.index_topk), -7, dtype=torch.int32),
            max_length=int(lengths.max()) if len(seqs) else 0,
        )


def score(
    driver: ModelDriver, sequences: Sequence[Sequence[int]], *, chunk: int, padding: int = 0
) -> list[Tensor]:
    """Log-probs of all positions of several sequences, each fed `chunk` tokens per step, all in one batch."""
    parts: list[list[Tensor]] = [[] for _ in sequences]
    while True:
        work = {
            seq: tokens[driver.lengths[seq] : driver.lengths[seq] + chunk]
            for seq, tokens in enumerate(sequences)
            if driver.lengths[seq] < len(tokens)
        }
        if not work:
            return [torch.cat(part) for part in parts]
        for seq, scores in driver.step(work, padding=padding).items():
            parts[seq].append(scores)
