"""Recorded replay of small functions: same results on new inputs, and what it refuses to record."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from paths.graphs.breakable import BreakableCapture, break_point, running_capture
from paths.graphs.native import load_native
from paths.graphs.recorded import RecordedBackend


@pytest.fixture(autouse=True, params=["python", "cpp"])
def native(request, monkeypatch):
    """Every test replays call by call, and with stretches in C++."""
    monkeypatch.setattr(f"{__name__}.NATIVE", load_native() if request.param == "cpp" else None)


NATIVE = None


def record(function, *, inline=False, inner=None):
    """Run once under capture; the capture and its replay."""
    recording = RecordedBackend(inner, NATIVE).recording()
    with BreakableCapture(recording, inline=inline) as capture:
        function()
    return capture, recording.finish()


def test_values_views_buffers_and_inplace_ops():
    x, out, columns = torch.randn(6, 4), torch.zeros(6, 4), torch.tensor([3, 1, 0, 2])
    first = x[:3]  # a view from outside

    def run():
        scratch = torch.empty(6, 4)
        scratch[:3] = first * 2  # through a view of a buffer
        scratch[3:] = x[3:]
        low, high = scratch.chunk(2)
        total = torch.cat([high, low]).add_(1)
        total += x
        values, _ = total.sort(dim=-1)
        out.copy_(values[:, columns])

    capture, replay = record(run)
    assert (capture.segments, capture.breaks) == (1, 0)
    for seed in range(3):
        x.copy_(torch.randn(6, 4, generator=torch.Generator().manual_seed(seed)))
        run()
        expected = out.clone()
        out.fill_(-1)
        replay.run()
        assert torch.equal(out, expected)
    assert [tuple(b.shape) for b in replay.buffers] == [(6, 4)]
    assert replay.memory_bytes == 96


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x.sum().item(), "(item|_local_scalar_dense|is_nonzero).*depends on the data"),
        (lambda x: bool((x > 0).any()), "(item|_local_scalar_dense|is_nonzero).*depends on the data"),
        (lambda x: x.nonzero(), "nonzero.*depends on the data"),
        (lambda x: x[x > 0], "depends on the data"),
        (lambda x: x.equal(x + 1), "equal.*depends on the data"),
        (lambda x: x.argwhere(), "depends on the data"),
        (lambda x: torch.where(x > 0), "depends on the data"),
        (lambda x: x.masked_select(x > 0), "depends on the data"),
        (lambda x: x.long().bincount(), "depends on the data"),
        (lambda x: x.unique(), "depends on the data"),
        (lambda x: x.repeat_interleave(x.long()), "depends on the data"),
        (lambda x: int(x[0]), "depends on the data"),
        (lambda x: x.tolist(), "tolist: it depends on the data"),
        (lambda x: (x + 1).numpy(), "numpy: it depends on the data"),
        (lambda x: np.asarray(x), "(numpy|__array__): it depends on the data"),
        (lambda x: torch.rand(3), "rand.*it is random"),
        (lambda x: x.bernoulli_(), "bernoulli.*it is random"),
        (lambda x: torch.tensor([1.0, 2.0]), "lift_fresh.*reads the host's memory"),
        (lambda x: x[[0, 2]], "lift_fresh.*reads the host's memory"),
        (lambda x: torch.dropout(x, 0.5, True), "it is random"),
        (lambda x: torch.randperm(3), "it is random"),
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_what_cannot_be_replayed_is_refused_by_name(function, message, inference):
    """Inference mode, in which captures run, shows the recorder composed operators whole."""
    with torch.inference_mode(inference), pytest.raises(RuntimeError, match=message):
        record(lambda: function(torch.ones(4)))
    assert running_capture() is None


def test_a_value_hidden_in_an_object_is_refused():
    @dataclass
    class Holder:
        tensor: Tensor

    x = torch.ones(3)

    def run():
        capture = running_capture()
        capture.call(lambda holder: holder.tensor + 1, (Holder(x * 2),), {})

    with pytest.raises(RuntimeError, match="a Holder holds a tensor computed in this forward pass"):
        record(run)
    capture, _ = record(lambda: running_capture().call(lambda h: h.tensor + 1, (Holder(x),), {}))
    assert capture.segments == 1


def test_nothing_is_recorded_inside_a_call():
    x, out, seen = torch.arange(4.0), torch.zeros(2), []

    def opaque(values):
        seen.append(running_capture())
        return values[values > 1.5], values.numpy()  # no graph could hold these

    def run():
        kept, _ = running_capture().call(opaque, (x * 1,), {})
        out.copy_(kept)

    _, replay = record(run)
    x.copy_(torch.tensor([5.0, 0.0, 6.0, 1.0]))
    replay.run()
    assert out.tolist() == [5, 6]
    assert seen == [None, None]


def test_an_operator_is_replaced_by_what_it_calls():
    calls = []

    def inner(x):
        calls.append(1)
        return running_capture().call(lambda y: y + 1, (x * 3,), {})

    x, out = torch.ones(2), torch.zeros(2)
    run = lambda: out.copy_(torch.ops.aten.sin.default(x))  # noqa: E731
    _, replay = record(run, inner={torch.ops.aten.sin.default: inner})
    x.fill_(2)
    replay.run()
    assert out.tolist() == [7, 7]
    assert calls == [1]


class Layers:
    """Two layers whose eager part sees how many rows are live."""

    def __init__(self):
        self.live, self.eager_runs = 4, 0
        self.x, self.out = torch.arange(4.0), torch.zeros(4)
        self.kept = []

    def run(self):
        h = self.x * 2
        for _ in range(2):
            scratch = torch.empty(4)
            scratch.zero_()
            self.attend(h + 1, scratch)
            h = h + scratch
        self.out.copy_(h)

    @break_point(writes="out")
    def attend(self, query, out):
        self.eager_runs += 1
        assert running_capture() is None
        self.kept.append(weakref.ref(query))
        out[: self.live] = query[: self.live]
        self.inner(out)

    @break_point(writes="out")
    def inner(self, out):
        """Belongs to the break that calls it."""
        out[: self.live] += 1


def test_segments_and_breaks():
    model = Layers()
    capture, replay = record(model.run)
    assert (capture.segments, capture.breaks) == (3, 2)
    for live in (4, 2, 0, 3):
        model.live = live
        model.x.copy_(torch.randn(4))
        model.run()
        expected = model.out.clone()
        model.out.fill_(-1)
        replay.run()
        assert torch.equal(model.out, expected), live
    assert model.eager_runs == 2 + 4 * 2 * 2


def test_inline_breaks_belong_to_the_one_segment():
    model = Layers()
    model.attend, model.live = Layers.attend.__wrapped__.__get__(model), 3
    with pytest.raises(AssertionError):  # the eager part is captured, and says so
        record(model.run, inline=True)


def test_what_an_eager_part_is_given_is_this_replays():
    """Not the tensor of the capture, which is gone: memory of a size that does not run is free."""
    model = Layers()
    _, replay = record(model.run)
    gc.collect()
    assert all(reference() is None for reference in model.kept)
    replay.run()
    assert model.out.tolist() == [6, 14, 22, 30]


def test_an_eager_part_must_not_return():
    @break_point(writes=None)
    def returns(x):
        return x + 1

    x = torch.ones(2)
    assert returns(x).tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="returns returned a value"):
        record(lambda: returns(x))
    assert running_capture() is None


@pytest.mark.parametrize("where", ["segment", "break"])
def test_an_exception_closes_the_capture(where):
    @break_point(writes=None)
    def part():
        if where == "break":
            raise ValueError("here")

    def run():
        torch.ones(2)
        part()
        raise ValueError("here")

    with pytest.raises(ValueError, match="here"):
        record(run)
    assert running_capture() is None
    assert torch.utils._python_dispatch._get_current_dispatch_mode_stack() == []
    assert record(lambda: torch.ones(2))[0].segments == 1
