"""Drives GraphedForward without a runner: sequences of any length in one step, and an eager twin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from paths.engine.batch import PAGE_SIZE
from paths.engine.context import forward_context
from paths.engine.static_inputs import DraftInputs, FirstDraftInputs, StaticInputs
from paths.graphs.config import GraphConfig, GraphMode
from paths.graphs.draft_pass import DraftPass
from paths.graphs.forward import GraphedForward
from paths.graphs.shape import BatchShape, Descriptor
from tests.model_driver import CPU, ModelDriver

Work = Mapping[int, Sequence[int]]  # sequence → its next tokens
MAX_LEN = 192  # three pages; index_topk of the model is 64
VOCAB = 512
FULL_AND_PIECEWISE = GraphConfig(
    decode=GraphMode.FULL, mixed=GraphMode.PIECEWISE, full_sizes=(1, 2, 4), piecewise_sizes=(8, 16, 64)
)
PIECEWISE_ONLY = replace(FULL_AND_PIECEWISE, decode=GraphMode.PIECEWISE)
FULL_ONLY = replace(FULL_AND_PIECEWISE, mixed=GraphMode.NONE)


class GraphDriver:
    """Fills the static inputs from a few sequences, whose caches start full of NaN.

    draft: run this draft of the model instead of its forward pass, from made-up hidden states.
    """

    def __init__(
        self,
        model,
        graphs: GraphConfig,
        *,
        kv_dtype: str = "float32",
        index_dtype: str = "float32",
        max_len: int = MAX_LEN,
        max_seqs: int = 4,
        max_tokens: int = 64,
        backend=None,
        capture: bool = True,
        draft: int | None = None,
    ) -> None:
        config = model.config
        self.sequences = ModelDriver(
            model,
            config,
            kv_dtype=kv_dtype,
            index_dtype=index_dtype,
            max_len=max_len,
            max_seqs=max_seqs,
            mtp_layers=0 if draft is None else config.num_nextn_predict_layers,
        )
        self.caches = self.sequences.caches
        self.inputs = StaticInputs(
            max_tokens=max_tokens,
            max_reqs=max_seqs,
            max_blocks=self.sequences.block_table.shape[1],
            index_topk=config.index_topk,
            device=CPU,
        )
        if draft is not None:
            self.inputs = DraftInputs(self.inputs, hidden_size=config.hidden_size, dtype=model.dtype)
            if draft == 0:
                self.inputs = FirstDraftInputs(self.inputs)
            model = DraftPass(model, self.inputs, step=draft)
        self.model = model
        self.forward = GraphedForward(
            model=model, caches=self.caches, inputs=self.inputs, config=graphs, backend=backend
        )
        if capture:
            self.forward.capture()

    def fill(self, work: Work) -> BatchShape:
        """The live rows of the static inputs. Rows behind them are left as the previous step had them."""
        tokens = [token for part in work.values() for token in part]
        rows = [row for row, part in enumerate(work.values()) for _ in part]
        positions = torch.tensor(
            [self.sequences.lengths[seq] + i for seq, part in work.items() for i in range(len(part))],
            dtype=torch.int64,
        )
        inputs, count = self.inputs, len(tokens)
        table = self.sequences.block_table[list(work)]
        blocks = table[rows, positions // PAGE_SIZE].long()
        inputs.input_ids[:count] = torch.tensor(tokens)
        inputs.positions[:count] = positions
        inputs.slot_mapping[:count] = blocks * PAGE_SIZE + positions % PAGE_SIZE
        inputs.req_rows[:count] = torch.tensor(rows)
        inputs.lengths[:count] = positions + 1
        inputs.seq_lens[: len(work)] = torch.tensor(
            [self.sequences.lengths[seq] + len(part) for seq, part in work.items()]
        )
        inputs.block_table[: len(work)] = table
        if isinstance(inputs, DraftInputs):
            generator = torch.Generator().manual_seed(sum(tokens) + int(positions.sum()))
            inputs.hidden[:count] = torch.randn(count, inputs.hidden.shape[1], generator=generator)
            self._fill_last(inputs, [len(part) for part in work.values()], positions)
        sizes = {len(part) for part in work.values()}
        decodes = all(self.sequences.lengths[seq] > 0 for seq in work)
        return BatchShape(
            num_tokens=count,
            num_reqs=len(work),
            query_len=sizes.pop() if decodes and len(sizes) == 1 else None,
            max_length=int(positions.max()) + 1,
        )

    @staticmethod
    def _fill_last(inputs: DraftInputs, sizes: list[int], positions: Tensor) -> None:
        """The last row of each request; one whose last position is a multiple of 13 drafts nothing."""
        ends = torch.tensor(sizes).cumsum(0) - 1
        drafts = positions[ends] % 13 > 0
        inputs.last_rows[: len(sizes)] = ends * drafts
        inputs.last_positions[: len(sizes)] = positions[ends] * drafts
        inputs.last_lengths[: len(sizes)] = (positions[ends] + 1) * drafts

    def advance(self, work: Work) -> None:
        for seq, part in work.items():
            self.sequences.lengths[seq] += len(part)

    def release(self, seq: int) -> None:
        """The sequence starts again from nothing; its pages keep what they hold."""
        self.sequences.lengths[seq] = 0

    def step(self, work: Work) -> tuple[Tensor, GraphMode]:
        """Hidden states of the live rows [T, Dm], copied, and how they were made."""
        hidden, mode = self.forward.run(self.fill(work))
        self.advance(work)
        return hidden.clone(), mode

    def eager_step(self, work: Work, size: Descriptor | None = None) -> Tensor:
        """The same rows without a graph, padded like the graph `size`, eager parts on the live rows."""
        shape = self.fill(work)
        live = self.inputs.batch(shape)
        padded = live
        if size is not None and size.mode is not GraphMode.NONE:
            self.inputs.pad(shape, num_tokens=size.num_tokens, num_reqs=size.num_reqs)
            reqs = self.inputs.num_queries(size.num_tokens, size.num_reqs)
            longest = shape.max_length
            if size.mode is GraphMode.FULL:  # one graph for all lengths
                longest = MAX_LEN if size.sparse else self.inputs.index_topk
            padded = self.inputs.padded(size.num_tokens, reqs, max_length=longest)
            if size.mode is GraphMode.FULL:
                live = padded
        with torch.inference_mode(), forward_context(self.model.context(live, self.caches)):
            hidden = self.model.bind(padded, self.caches)()
        self.advance(work)
        return hidden[: self.inputs.num_outputs(shape)].clone()

    def descriptor(self, work: Work) -> Descriptor:
        """The graph that would run this step."""
        dispatcher = self.forward._dispatcher
        assert dispatcher is not None, "a configuration that captures"
        return dispatcher.dispatch(self.fill(work))[0]

    def same_caches(self, other: GraphDriver) -> bool:
        """Byte for byte, all blocks, the null block included."""
        pairs = [
            (a, b)
            for x, y in zip(self.caches, other.caches, strict=True)
            for a, b in ((x.kv, y.kv), (x.index, y.index))
            if a is not None and b is not None
        ]
        return all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in pairs)


def random_work(
    driver: GraphDriver,
    generator: torch.Generator,
    *,
    max_tokens: int = 64,
    max_len: int = MAX_LEN,
    query_lens: Sequence[int] = (1,),
) -> Work:
    """Some sequences decode one token, some prefill a chunk, some are idle or start again.

    Where all decode, they have one of `query_lens` tokens each.
    """

    def draw(high: int) -> int:
        return int(torch.randint(high, (1,), generator=generator))

    lengths = driver.sequences.lengths
    for seq, length in enumerate(lengths):
        if length + max(query_lens) > max_len or draw(25) == 0:
            driver.release(seq)
    if all(lengths) and draw(3) == 0:
        size = query_lens[draw(len(query_lens)) if len(query_lens) > 1 else 0]
        return {seq: [3 + draw(VOCAB - 3) for _ in range(size)] for seq in range(1 + draw(len(lengths)))}
    work, left = {}, max_tokens
    for seq, length in enumerate(lengths):
        chunk = 1 if length and draw(4) else 1 + draw(40)
        chunk = min(chunk, left, max_len - length)
        if chunk and draw(5):
            work[seq] = torch.randint(3, VOCAB, (chunk,), generator=generator).tolist()
            left -= chunk
    return work or {0: [5]}


def replays_equal_eager(
    model,
    graphs: GraphConfig,
    *,
    steps: int,
    kv_dtype: str = "float32",
    seed: int = 0,
    backend=None,
    draft: int | None = None,
) -> dict[str, int]:
    """Steps by mode, after every one gave the bits and the cache bytes of an eager twin of the same size."""
    index_dtype = "fp8" if kv_dtype.startswith("fp8") else kv_dtype
    replayed = GraphDriver(
        model, graphs, kv_dtype=kv_dtype, index_dtype=index_dtype, backend=backend, draft=draft
    )
    eager = GraphDriver(model, GraphConfig(), kv_dtype=kv_dtype, index_dtype=index_dtype, draft=draft)
    assert replayed.same_caches(eager), "a capture has written to the caches"
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        work = random_work(replayed, generator, query_lens=graphs.query_lens)
        eager.sequences.lengths[:] = replayed.sequences.lengths
        size = replayed.descriptor(work)
        hidden, mode = replayed.step(work)
        assert mode is size.mode
        assert torch.equal(hidden, eager.eager_step(work, size)), f"step {step}: {size}"
        assert hidden.isfinite().all()
    assert replayed.same_caches(eager)
    return replayed.forward.counts.steps
