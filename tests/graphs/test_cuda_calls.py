"""The CUDA backend's calls against a stand-in for torch.cuda, and the order of calls at capture."""

from __future__ import annotations

import gc
from contextlib import contextmanager

import pytest
import torch

from paths.api import UserError
from paths.engine.batch import LayerCache
from paths.graphs.breakable import BreakableCapture, break_output, break_point, running_capture
from paths.graphs.cuda_backend import CudaBackend
from paths.graphs.recorded import RecordedBackend
from tests.graphs.driver import FULL_AND_PIECEWISE, PIECEWISE_ONLY, GraphDriver


@pytest.fixture
def calls(monkeypatch):
    """What torch.cuda was asked to do, in order."""
    log = []

    class Graph:
        count = 0

        def __init__(self):
            self.number = Graph.count
            Graph.count += 1

        def capture_begin(self, *, pool):
            log.append(f"begin {self.number} in {pool}")

        def capture_end(self):
            log.append(f"end {self.number}")

        def replay(self):
            log.append(f"replay {self.number}")

    @contextmanager
    def stream(which):
        log.append(f"enter {which}")
        yield
        log.append(f"leave {which}")

    reserved = iter((1000, 1500))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "pool")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: log.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "Stream", lambda: "side stream")
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: next(reserved))
    return log


def test_cuda_call_sequence(calls):
    @break_point(writes="out")
    def part(name, out):
        calls.append(name)

    def run():
        calls.append("segment")
        part("first", break_output(like, 2))
        part("second", break_output(like, 2))

    backend = CudaBackend()
    like = torch.empty(0)
    with backend.session():
        backend.synchronize()
        recording = backend.recording()
        with BreakableCapture(recording, inline=False) as capture:
            run()
    assert calls == [
        *("synchronize", "enter side stream", "synchronize"),
        *("begin 0 in pool", "segment", "end 0"),  # the output is allocated outside of the pool
        *("begin 1 in pool", "end 1", "first"),
        *("begin 2 in pool", "end 2", "second", "begin 3 in pool", "end 3"),
        *("leave side stream", "synchronize"),
    ]
    assert (capture.segments, capture.breaks) == (3, 2)
    assert backend.pool_bytes() == 500
    calls.clear()
    replay = recording.finish()
    replay.run()
    assert calls == ["replay 0", "replay 1", "first", "replay 2", "second", "replay 3"]


def test_weights_and_caches_of_a_break_are_no_buffers(calls):
    """`debug.checks` fills what lies behind the live rows of a buffer with NaN."""
    cache = LayerCache(
        kv=torch.ones(2, 64, 8), kv_dtype="float32", k_scale=torch.ones(()), index=None, index_dtype="none"
    )

    @break_point(writes="out")
    def part(cache, out):
        outs.append(out)

    outs = []
    recording = CudaBackend().recording()
    with BreakableCapture(recording, inline=False):
        part(cache, out=break_output(cache.kv, 2))
    (buffer,) = recording.finish().buffers
    assert buffer is outs[0]


def test_memory_of_a_pool_is_counted_once(small_model):
    """It holds the kept buffers and the shared output."""

    class Pool(RecordedBackend):
        def pool_bytes(self):
            return 500

    assert GraphDriver(small_model, FULL_AND_PIECEWISE, backend=Pool()).forward.captured.memory_bytes == 500


def test_an_exception_ends_the_cuda_capture(calls):
    with (
        pytest.raises(ValueError, match="in a segment"),
        BreakableCapture(CudaBackend().recording(), inline=False),
    ):
        raise ValueError("in a segment")
    assert calls == ["begin 0 in pool", "end 0"]
    assert running_capture() is None


@pytest.mark.parametrize(
    ("op", "name"), [("sparse_mla", "torch"), ("index_topk", "torch"), ("index_topk", "reference")]
)
def test_a_kernel_that_waits_is_no_part_of_a_full_cuda_graph(calls, monkeypatch, small_model, op, name):
    implementations = small_model._kernels.implementations
    for other in ("sparse_mla", "index_topk"):
        monkeypatch.setitem(implementations, other, "triton")
    GraphDriver(small_model, FULL_AND_PIECEWISE, backend=CudaBackend(), capture=False)
    monkeypatch.setitem(implementations, op, name)
    remedy = rf"kernel {op}={name} waits for the GPU.*FULL.*path\.options\.graphs=piecewise or none"
    with pytest.raises(UserError, match=remedy):
        GraphDriver(small_model, FULL_AND_PIECEWISE, backend=CudaBackend(), capture=False)
    for config, backend in ((PIECEWISE_ONLY, CudaBackend()), (FULL_AND_PIECEWISE, RecordedBackend())):
        GraphDriver(small_model, config, backend=backend, capture=False)
    if op == "index_topk":  # never called where no row sees more keys than are selected
        monkeypatch.setattr(small_model, "max_model_len", small_model.config.index_topk)
        GraphDriver(small_model, FULL_AND_PIECEWISE, backend=CudaBackend(), capture=False)


class Logged(RecordedBackend):
    """Says when it is called; memory of one size can be told from that of another."""

    def __init__(self, log):
        super().__init__()
        self.log = log

    @contextmanager
    def session(self):
        assert gc.get_freeze_count() > 0
        self.log.append("session")
        yield
        self.log.append("done")

    def recording(self):
        log = self.log
        recording = super().recording()

        class Wrapper:
            sees_kernels = False
            call, eager, cross = recording.call, recording.eager, recording.cross
            break_output = recording.break_output
            abort, keep, finish = recording.abort, recording.keep, recording.finish

            def begin(self):
                log.append("capture_begin")
                recording.begin()

            def end(self):
                recording.end()
                log.append("capture_end")

        return Wrapper()

    def synchronize(self):
        self.log.append("synchronize")


def test_order_of_warm_up_and_capture(small_model, monkeypatch):
    """Warm-up kernels may still own storage that a capture would be given: wait between the two."""
    log = []
    hidden = small_model._hidden

    def logged(batch, caches):
        log.append(f"forward {batch.num_tokens}")
        return hidden(batch, caches)

    monkeypatch.setattr(small_model, "_hidden", logged)
    GraphDriver(small_model, FULL_AND_PIECEWISE, backend=Logged(log))
    expected = ["session"]
    for size, breaks in ((64, 2), (16, 2), (8, 2), (4, 0), (2, 0), (1, 0)):
        one = [f"forward {size}", "synchronize", "capture_begin", f"forward {size}"]
        one += ["capture_end", "capture_begin"] * breaks + ["capture_end"]
        expected += one * 2  # with ranking of keys and without
    assert log == [*expected, "done"]
    assert gc.get_freeze_count() == 0
