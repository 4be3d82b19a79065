"""Compiled pieces in a graph: calls are recorded, memory is shared, runs are counted."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from paths.graphs import generated
from paths.graphs.breakable import BreakableCapture
from paths.graphs.generated import GeneratedKernel, Scratch, catch_generated
from paths.graphs.native import join_stretches, load_native, native_arguments
from paths.graphs.piecewise import PiecewiseCompiler
from paths.graphs.program import Instruction, Value, compile_program
from paths.graphs.recorded import RecordedBackend

sin = torch.ops.aten.sin.default


class Waves:
    """Two pieces around an opaque op: loops in C++, products, a sort, a view of what an operator computes."""

    def __init__(self):
        self.compiler = PiecewiseCompiler(self.run, split_ops=[sin])
        self.weight = torch.randn(6, 6) / 6

    def run(self, x):
        y = sin(x.exp() * 2 + x)
        z = torch.sort(y @ self.weight, dim=-1).values
        return z.unflatten(1, (2, 3)).transpose(1, 2).flatten(1) @ self.weight + y.sum(-1, keepdim=True)


@pytest.fixture(scope="module")
def waves():
    return Waves()


def record(model, x, out, *, native, backend=None):
    recording = (backend or RecordedBackend(native=native)).recording()
    with torch.inference_mode():
        bound = model.compiler.bind(x)
        with BreakableCapture(recording, inline=True):
            out.copy_(bound())
    return recording


@torch.inference_mode()
def run(replay):
    replay.run()


@pytest.mark.parametrize("rows", [1, 63, 100, 111])
@pytest.mark.parametrize("native", [False, True])
def test_calls_are_replayed(waves, rows, native, monkeypatch):
    instructions = []
    monkeypatch.setattr(
        "paths.graphs.recorded.compile_program",
        lambda program: (instructions.extend(program), compile_program(program))[1],
    )
    x, out = torch.randn(rows, 6), torch.zeros(rows, 6)
    replay = record(waves, x, out, native=load_native() if native else None).finish()
    before = waves.compiler.pieces_run
    for _ in range(3):
        x.copy_(torch.randn(rows, 6))
        run(replay)
        torch.testing.assert_close(out, waves.run(x), rtol=1e-5, atol=1e-3)
    assert waves.compiler.pieces_run - before == 6
    if native:
        assert len(instructions) == 2  # everything, and the count
    else:
        assert sum(isinstance(i.target, GeneratedKernel) for i in instructions) > 1


def test_code_that_calls_something_unknown_stays_whole(monkeypatch):
    monkeypatch.setattr(generated, "_kernel", lambda function: None)
    with catch_generated() as caught:
        torch.compile(lambda x: x.cos() + 1, fullgraph=True)(torch.randn(5, 3))
    assert caught == [None]
    model = Waves()
    x, out = torch.randn(7, 6), torch.zeros(7, 6)
    run(record(model, x, out, native=None).finish())
    torch.testing.assert_close(out, model.run(x), rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize("torch_has", [{}, {"CompiledFxGraph": object}])
def test_another_torch_compiles_all_the_same(monkeypatch, torch_has):
    """Its code may be handed over in another way; pieces stay one instruction each then."""
    monkeypatch.setattr(generated, "output_code", SimpleNamespace(**torch_has))
    model, x, out = Waves(), torch.randn(4, 6), torch.zeros(4, 6)
    replay = record(model, x, out, native=None).finish()
    run(replay)
    torch.testing.assert_close(out, model.run(x))
    x.mul_(2)
    run(replay)
    torch.testing.assert_close(out, model.run(x))
    assert model.compiler.pieces_run > 0


def test_generated_names_are_put_back_when_a_recording_fails(waves):
    pieces = [piece for piece in vars(_stitched(waves)).values() if getattr(piece, "_code", None) is not None]
    assert len(pieces) == 2
    for piece in pieces:
        names = dict(piece._code._names)
        with pytest.raises(ZeroDivisionError), piece._code.recorded(None, Scratch()):
            assert piece._code._names != names
            raise ZeroDivisionError
        assert piece._code._names == names


def _stitched(model):
    """The stitched module of the latest compilation."""
    x = torch.randn(5, 6)
    model.compiler._binding = []
    model.compiler(x)
    (bound,) = model.compiler._binding
    model.compiler._binding = None
    return bound.func.__self__


def test_scratch_is_used_again():
    scratch = Scratch()
    first = scratch.take((63, 3), (3, 1), torch.float32)
    second = scratch.take((100,), (1,), torch.int64)
    assert first.shape == (63, 3)
    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()
    scratch.end_piece([first.t(), 5])
    third = scratch.take((111, 1), (1, 1), torch.bfloat16)  # what the result does not need
    assert third.data_ptr() == second.data_ptr()
    assert third.shape == (111, 1)
    fourth = scratch.take((1,), (1,), torch.float32)
    assert fourth.data_ptr() not in (first.data_ptr(), second.data_ptr())
    assert scratch.take((0, 7), (7, 1), torch.float32).shape == (0, 7)
    scratch.end_piece([])
    scratch.end_pass()
    again = scratch.take((63, 3), (3, 1), torch.float32)
    assert again.data_ptr() == first.data_ptr()


def test_scratch_takes_the_smallest_that_fits():
    scratch = Scratch()
    large, small = (scratch.take((n,), (1,), torch.float32) for n in (1000, 16))
    scratch.end_piece([])
    taken = [scratch.take((n,), (1,), torch.float32).data_ptr() for n in (16, 16, 16)]
    assert taken[:2] == [small.data_ptr(), large.data_ptr()]
    assert taken[2] not in taken[:2]


def test_two_graphs_share_their_memory(waves):
    backend = RecordedBackend(native=load_native())
    out, x = torch.zeros(100, 6), torch.randn(100, 6)
    replays = [record(waves, x[:n], out[:n], native=None, backend=backend).finish() for n in (100, 63)]
    assert replays[0].memory_bytes > 100 * 6 * 4
    assert replays[1].memory_bytes == 0
    for replay, n in ((replays[0], 100), (replays[1], 63), (replays[0], 100)):
        out.zero_()
        run(replay)
        torch.testing.assert_close(out[:n], waves.run(x[:n]), rtol=1e-5, atol=1e-3)


def kernel_call(*args):
    return Instruction(target=GeneratedKernel(print, 0), args=args, kwargs={}, outputs=None)


@pytest.mark.parametrize(
    ("args", "taken"),
    [
        ((Value(0), torch.ones(1), 5, 7), True),
        ((Value(0), 5, Value(1)), False),
        ((Value(0), 5.0), False),
        ((Value(0),) * 64, True),
        ((Value(0),) * 64 + (5,), False),
    ],
)
def test_which_kernels_run_without_python(args, taken):
    assert (native_arguments(kernel_call(*args)) is not None) == taken


def test_too_many_arguments_are_refused():
    native = load_native()
    program = native.create.default(1, 1, [])
    with pytest.raises(RuntimeError, match="65 arguments"):
        native.add_kernel.default(program, 0, [0] * 60, [5] * 5, [])
    with pytest.raises(RuntimeError, match="argument 1"):
        native.add_kernel.default(program, 0, [1], [], [])
    native.destroy.default(program)


def test_a_kernel_alone_is_called_by_python():
    seen = []
    alone = Instruction(target=GeneratedKernel(seen.append, 0), args=(5,), kwargs={}, outputs=None)
    compile_program(join_stretches([alone], load_native()))()
    assert seen == [5]
