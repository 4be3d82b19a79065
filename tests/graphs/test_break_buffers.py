"""What crosses the breaks of CUDA graphs, with a stand-in for torch.cuda that replays what it captured."""

from __future__ import annotations

import gc
import itertools
import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from paths.graphs.break_buffers import BreakBuffers
from paths.graphs.breakable import BreakableCapture, break_output, break_point
from paths.graphs.cuda_backend import CudaBackend
from paths.graphs.piecewise import PiecewiseCompiler, SplitOps
from tests.graphs.driver import PIECEWISE_ONLY, GraphDriver, replays_equal_eager

pytestmark = pytest.mark.no_poison


class Tape(TorchDispatchMode):
    """Operators of one segment, which write to the same memory at every replay, as in a graph."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, result))
        return result

    def replay(self):
        for func, args, kwargs, result in self.calls:
            again = func(*args, **kwargs)
            if isinstance(result, torch.Tensor):
                self.renew(result, again)
            elif isinstance(result, tuple | list):
                for old, new in zip(result, again, strict=True):
                    self.renew(old, new)

    @staticmethod
    def renew(old, new):
        if old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
            old.copy_(new)


@pytest.fixture
def tapes(monkeypatch):
    """Every segment captured, in order."""
    made = []

    class Graph:
        def capture_begin(self, *, pool):
            self.tape = Tape()
            made.append(self.tape)
            self.tape.__enter__()

        def capture_end(self):
            self.tape.__exit__(None, None, None)

        def replay(self):
            self.tape.replay()

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
    monkeypatch.setattr(torch.cuda, "stream", lambda which: torch.no_grad())
    return made


class Layers:
    """Each layer writes its output from a query, a row of numbers and the output before."""

    def __init__(self, layers):
        self.layers = layers
        self.x, self.out = torch.randn(111, 4), torch.zeros(111, 4)
        self.live = 111
        self.seen = []

    def run(self, rows):
        h = self.x[:rows]
        for layer in range(self.layers):
            query, weights = h * 2 + layer, h[:, 0] - 1
            output = break_output(h, rows, 4)
            self.attend(query, weights, torch.empty(0, 8), output=output)
            h = h + output
        self.out[:rows].copy_(h)

    @break_point(writes="output")
    def attend(self, query, weights, nothing, *, output):
        assert nothing.shape == (0, 8)
        self.seen = [weakref.ref(query), weakref.ref(weights)]
        output[self.live :].zero_()
        output[: self.live] = (query.sin() + weights[:, None])[: self.live]


def record(backend, function):
    recording = backend.recording()
    with BreakableCapture(recording, inline=False):
        function()
    return recording.finish()


def held(replays):
    """Bytes of the storages that the replays hold."""
    storages = {
        buffer.untyped_storage().data_ptr(): buffer.untyped_storage().nbytes()
        for replay in replays
        for buffer in replay.buffers
    }
    return sum(storages.values())


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("sizes", [(111,), (111, 100, 63, 1)])
def test_memory_does_not_grow_with_layers_or_sizes(tapes, layers, sizes):
    model, backend = Layers(layers), CudaBackend()
    replays = [record(backend, lambda size=size: model.run(size)) for size in sizes]
    assert held(replays) == 111 * 4 * (4 + 1 + 4)  # query, weights, output
    assert len(tapes) == (layers + 1) * len(sizes) + 2  # cut twice, where something was allocated


@pytest.mark.parametrize("order", list(itertools.permutations((100, 63, 1))))
@pytest.mark.parametrize("captured", [(100, 63, 1), (1, 63, 100)])
def test_sizes_replayed_in_every_order_equal_eager(tapes, order, captured):
    model, backend = Layers(3), CudaBackend()
    replays = {size: record(backend, lambda size=size: model.run(size)) for size in captured}
    for size in (*order, *order):
        model.live = max(1, size - 7)
        model.x.normal_()
        model.run(size)
        expected = model.out.clone()
        model.out.fill_(-1)
        replays[size].run()
        assert torch.equal(model.out[:size], expected[:size])
        assert (model.out[size:] == -1).all()


def test_the_pool_is_not_held_and_what_a_break_reads_is_alive(tapes):
    model, backend = Layers(2), CudaBackend()
    replay = record(backend, lambda: model.run(63))
    results = [
        weakref.ref(result)
        for tape in tapes
        for func, _, _, result in tape.calls
        if func is torch.ops.aten.mul.Tensor or func is torch.ops.aten.sin.default
    ]
    for tape in tapes:
        tape.calls.clear()
    read = model.seen
    del backend, tape
    gc.collect()
    assert results and all(result() is None for result in results)
    assert all(tensor() is not None for tensor in read)
    replay.run()  # the eager parts alone, on what is still there
    del replay
    gc.collect()
    assert all(tensor() is None for tensor in read)


def test_an_output_that_would_be_lost_is_refused(tapes):
    @break_point(writes="out")
    def part(out):
        out.fill_(1)

    with pytest.raises(RuntimeError, match="would not read: use break_output"):
        record(CudaBackend(), lambda: part(torch.empty(3)))
    with pytest.raises(TypeError, match="has no parameter 'output' to write"):
        break_point(writes="output")(lambda out: None)


def test_two_outputs_of_one_break_are_two_buffers(tapes):
    @break_point(writes="first")
    def part(first, second):
        first.fill_(1)
        second.fill_(2)

    out = torch.zeros(())

    def run():
        first, second = break_output(out, 3), break_output(out, 3)
        part(first, second)
        out.copy_((second - first).sum())

    replay = record(CudaBackend(), run)
    out.zero_()
    replay.run()
    assert out == 3


def test_places_and_shapes_of_buffers():
    buffers, like = BreakBuffers(), torch.zeros((), dtype=torch.float64)
    big, small = buffers.view(0, like, (100, 2)), buffers.view(0, like, (63, 2))
    assert small.data_ptr() == big.data_ptr() and small.shape == (63, 2)
    others = [buffers.view(1, like, (1, 2)), buffers.view(0, like.float(), (1, 2)), buffers.view(0, like, ())]
    assert all(other.data_ptr() != big.data_ptr() and buffers.owns(other) for other in others)
    assert not buffers.owns(like) and not buffers.has(0, like, (101, 2))
    assert buffers.view(0, like, (111, 2)).data_ptr() != big.data_ptr()
    assert buffers.owns(buffers.view(0, like, (111, 2))[5:])
    outgrown = weakref.ref(big._base)
    del big, small
    gc.collect()
    assert outgrown() is not None  # else another tensor at its address would pass for a buffer


def test_results_of_split_ops_share_one_buffer(tapes):
    """But not one whose strides the next piece relies on."""
    x, out = torch.randn(100, 4), torch.zeros(100, 4)
    part, turned = SplitOps(lambda x: (x.cos(), x + 1)), SplitOps(lambda x: (x * 3).t().contiguous().t())

    def run(rows):
        h = x[:rows]
        for split in (part, part, turned):
            results = split(h * 2)
            assert split is part or results.stride() == (1, rows)
            h = results[0] - results[1] if split is part else results
        out[:rows].copy_(h)

    backend = CudaBackend()
    replays = {rows: record(backend, lambda rows=rows: run(rows)) for rows in (100, 63)}
    assert held(replays.values()) == 100 * 16 * 3 + 163 * 16  # an argument, two results; the turned ones
    for rows in (63, 100, 63):
        x.normal_()
        run(rows)
        expected = out.clone()
        out.zero_()
        replays[rows].run()
        assert torch.equal(out[:rows], expected[:rows])


def test_a_result_read_behind_the_next_split_op_is_refused():
    def late(x):
        first = torch.ops.aten.sin.default(x + 1)
        return torch.ops.aten.sin.default(first * 2) + first

    class Model:
        def run(self, x):
            return late(x)

    compiler = PiecewiseCompiler(Model().run, split_ops=[torch.ops.aten.sin.default])
    with pytest.raises(Exception, match="read behind the next split ops"):
        compiler(torch.randn(5, 3))


def test_a_model_replays_like_eager(tapes, small_model):
    driver = GraphDriver(small_model, PIECEWISE_ONLY, backend=CudaBackend())
    buffers = [graph.replay for graph in driver.forward._graphs.values()]
    one = GraphDriver(small_model, PIECEWISE_ONLY, backend=CudaBackend())
    largest = [g.replay for d, g in one.forward._graphs.items() if d.num_tokens == 64]
    assert held(buffers) == held(largest)
    steps = replays_equal_eager(small_model, PIECEWISE_ONLY, steps=6, backend=CudaBackend())
    assert steps["PIECEWISE"] == 6
