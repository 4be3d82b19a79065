"""Stretches in C++: what they take, what stays in Python, and that their memory goes."""

from __future__ import annotations

import gc

import pytest
import torch

from paths.graphs.native import join_stretches, load_native, native_arguments
from paths.graphs.program import Instruction, Value, compile_program
from paths.kernels.cpp import CppUnavailable
from tests.graphs.conftest import dsa_model
from tests.graphs.driver import FULL_AND_PIECEWISE, GraphDriver, replays_equal_eager

aten = torch.ops.aten


@pytest.fixture(scope="module")
def native():
    return load_native()


def call(target, *args, outputs=None, **kwargs):
    return Instruction(target=target, args=args, kwargs=kwargs, outputs=outputs)


@pytest.mark.parametrize(
    ("instruction", "arguments"),
    [
        (call(aten.add.Tensor, Value(0), Value(1)), [Value(0), Value(1), 1]),
        (call(aten.add.Tensor, Value(0), Value(1), alpha=2), [Value(0), Value(1), 2]),
        (call(aten.leaky_relu.default, Value(0), 2), [Value(0), 2]),
        (call(aten.slice.Tensor, Value(0), 1, 0, 5), [Value(0), 1, 0, 5, 1]),
        (call(aten.native_dropout.default, Value(0), 1, None), [Value(0), 1.0, None]),
        (call(aten.cat.default, [Value(0), Value(1)]), [[Value(0), Value(1)], 0]),
        (call(aten.to.dtype, Value(0), torch.float32), [Value(0), torch.float32, False, False, None]),
        (call(aten.argmax.default, Value(0), True), None),  # a bool is no dimension
        (call(aten.split.Tensor, Value(0), 2), None),  # returns a list
        (
            call(aten._to_copy.default, Value(0), dtype=torch.bfloat16),
            [Value(0), torch.bfloat16, None, None, None, False, None],
        ),
        (call(aten.contiguous.default, Value(0), memory_format=torch.channels_last), None),
        (call(aten.view.default, Value(0), [2, 3]), [Value(0), [2, 3]]),
        (call(aten.view.default, Value(0), []), None),
        (call(torch.add, Value(0), Value(1)), None),  # no operator
    ],
)
def test_arguments(instruction, arguments):
    assert native_arguments(instruction) == arguments
    if arguments is not None:
        assert [type(a) for a in native_arguments(instruction)] == [type(a) for a in arguments]


def test_a_program_with_python_in_the_middle(native):
    x, out = torch.randn(5, 3), torch.zeros(5, 3)
    seen = []
    program = [
        call(aten.mul.Tensor, x, x, outputs=Value(0)),
        call(aten.add.Tensor, Value(0), x, alpha=3, outputs=Value(1)),
        call(aten.aminmax.default, Value(1), dim=1, keepdim=True, outputs=(Value(2), None)),
        call(lambda low: seen.append(low.shape), Value(2)),
        call(aten.sub.Tensor, Value(1), Value(2), outputs=Value(3)),
        call(aten.copy_.default, out, Value(3)),
    ]
    joined = join_stretches(program, native)
    assert len(joined) == 3
    assert [i.outputs for i in joined] == [(Value(1), Value(2)), None, None]
    run = compile_program(joined)
    for _ in range(2):
        x.copy_(torch.randn(5, 3))
        run()
        y = (x * x).add(x, alpha=3)
        assert torch.equal(out, y - y.amin(dim=1, keepdim=True))
    assert seen == [(5, 1)] * 2


def test_lists_and_dtypes(native):
    x, y = torch.randn(5, 3), torch.randn(5, 2)
    out = torch.zeros(5, 8, dtype=torch.float64)
    program = [
        call(aten.neg.default, x, outputs=Value(0)),
        call(aten.cat.default, [Value(0), y, Value(0)], -1, outputs=Value(1)),
        call(aten.to.dtype, Value(1), torch.float64, outputs=Value(2)),
        call(aten.copy_.default, out, Value(2)),
    ]
    joined = join_stretches(program, native)
    assert len(joined) == 1
    run = compile_program(joined)
    for _ in range(2):
        x.copy_(torch.randn(5, 3))
        run()
        assert torch.equal(out, torch.cat([-x, y, -x], dim=-1).double())


def test_a_forgotten_program_gives_its_constants_back(native):
    x = torch.ones(3)
    storage_before = torch._C._storage_Use_Count(x.untyped_storage()._cdata)
    run = compile_program(
        join_stretches([call(aten.add_.Tensor, x, x), call(aten.add_.Tensor, x, x)], native)
    )
    run()
    assert x.tolist() == [4, 4, 4]
    del run
    gc.collect()
    assert torch._C._storage_Use_Count(x.untyped_storage()._cdata) == storage_before
    with pytest.raises(RuntimeError, match="no program 999999"):
        native.run.default(999999, [])


def test_wrong_programs_are_refused(native):
    program = native.create.default(2, 1, [])
    with pytest.raises(RuntimeError, match="takes 3 arguments, not 1"):
        native.add_call.default(program, "aten::add", "Tensor", [0], [1], [])
    with pytest.raises(RuntimeError, match="argument 2"):
        native.add_call.default(program, "aten::neg", "", [2], [1], [])
    with pytest.raises(RuntimeError, match="argument -1"):
        native.add_call.default(program, "aten::neg", "", [-1], [1], [])
    with pytest.raises(RuntimeError, match="0 inputs"):
        native.run.default(program, [])
    native.destroy.default(program)


def test_a_full_graph_is_one_call(small_model, monkeypatch):
    stretches = []

    def counted(instructions, native):
        joined = join_stretches(instructions, native)
        stretches.append(len(joined))
        return joined

    monkeypatch.setattr("paths.graphs.recorded.join_stretches", counted)
    GraphDriver(small_model, FULL_AND_PIECEWISE)
    # PIECEWISE: three segments and two eager parts; FULL: everything
    assert stretches == [5] * 6 + [1] * 6


def test_without_a_compiler_replay_is_python_and_says_so(monkeypatch):
    def unavailable():
        raise CppUnavailable("no C++ compiler")

    monkeypatch.setattr("paths.graphs.forward.load_native", unavailable)
    model = dsa_model(num_hidden_layers=2)
    steps = replays_equal_eager(model, FULL_AND_PIECEWISE, steps=20)
    assert steps["NONE"] == 0
    assert "graphs: replayed in Python instead of C++, no C++ compiler" in model._kernels.notes
