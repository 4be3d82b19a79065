"""`check`: what it compares, how it fails, and what its memory notices."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from paths.api import UserError
from paths.dsa_mrv2.kernels.describe import DENSE_GEMMS
from paths.kernels.__main__ import main
from paths.kernels.cases import Call, Case, close, exact
from paths.kernels.tools.catalog import find_ops
from paths.kernels.tools.check import check_op
from paths.kernels.tools.comparison import compare
from paths.kernels.tools.poison import GUARD_BYTES, poisoned_memory

pytest.importorskip("triton")
NAN = float("nan")


def difference(actual, expected, tolerance):
    return compare({"x": actual}, {"x": expected}, {"x": tolerance})


@pytest.mark.parametrize(
    ("actual", "expected", "tolerance", "fault"),
    [
        ([1.0, NAN], [1.0, 2.0], close(1, 1e9), "x: 1 values are NaN on one side only, first at [1]"),
        ([1.0, 2.0], [NAN, 2.0], close(1, 1e9), "NaN on one side only, first at [0]"),
        ([float("inf")], [float("-inf")], close(1, 1e9), "infinities differ"),
        ([3.0], [float("inf")], close(1, 1e9), "infinities differ"),
        ([1.5], [1.0], close(0.0, 0.25), "off by 0.5"),
        ([0.0], [-0.0], exact(), "1 values differ"),
    ],
)
def test_differences_are_found(actual, expected, tolerance, fault):
    assert fault in difference(torch.tensor(actual), torch.tensor(expected), tolerance).fault


@pytest.mark.parametrize(
    ("actual", "expected", "tolerance"),
    [
        ([NAN, 1.0], [NAN, 1.0], exact()),
        ([float("inf"), 1.25], [float("inf"), 1.0], close(0.0, 0.25)),
        ([0.0], [-0.0], close(0.0, 1e-9)),
        ([], [], exact()),
    ],
)
def test_equal_enough_passes(actual, expected, tolerance):
    found = difference(torch.tensor(actual), torch.tensor(expected), tolerance)
    assert not found.fault and found.excess <= 1


def test_shape_dtype_and_missing_outputs_are_faults():
    x = torch.zeros(2, 3)
    assert "[3, 2]" in difference(x.view(3, 2), x, exact()).fault
    assert "bfloat16" in difference(x.bfloat16(), x, close(1, 1)).fault
    assert "outputs are" in compare({}, {"x": x}, {"x": exact()}).fault


def test_integers_and_bytes_compare_exactly():
    assert "1 values differ" in difference(torch.tensor([1, 2]), torch.tensor([1, 3]), exact()).fault
    e4m3 = torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn)
    assert not difference(e4m3, e4m3.clone(), exact()).fault


@pytest.mark.no_poison
def test_memory_is_poisoned_and_guarded():
    with poisoned_memory() as guards:
        for x in (torch.empty(3, 5), torch.empty_like(torch.zeros(4)), torch.zeros(1).new_empty(7)):
            assert x.isnan().all() and x.is_contiguous()
        assert torch.empty(2, dtype=torch.float8_e4m3fn).float().isnan().all()
        assert (torch.empty(4, dtype=torch.int32) < -1000).all()
        assert guards.release()
        x = torch.empty(5)
        torch.as_strided(x, (1,), (1,), x.storage_offset() + 5).zero_()
        assert not guards.release()
        x = torch.empty(5)
        torch.as_strided(x, (1,), (1,), x.storage_offset() - 1).zero_()
        assert not guards.release()
        assert x.storage_offset() * 4 == GUARD_BYTES
    assert torch.zeros(1).new_empty(3).storage_offset() == 0


def _case(name="group/case", **changes):
    def make(generator, device):
        x = torch.randn(3, 4, generator=generator)
        return Call((x, torch.ones(4), 1e-5), {}, lambda out: {"out": out}, {"out": close(1e-5, 1e-5)})

    return replace(Case(name, make), **changes)


class _Faked:
    """The op rms_norm with other cases, or with an implementation that is wrong."""

    def __init__(self, cases, torch_impl=None, specs=()):
        self._op = find_ops(["rms_norm"])[0]
        self.name, self.implementations = "rms_norm", ("reference", "torch")
        self._cases, self._torch, self._specs = cases, torch_impl, specs

    def check_cases(self):
        return self._cases

    def compile_specs(self):
        return list(self._specs)

    def function(self, implementation, name=None):
        wrong = implementation == "torch" and self._torch is not None
        return self._torch if wrong else self._op.function(implementation, name)


def rows_of(cases, torch_impl=None, **options):
    found = check_op(_Faked(cases, torch_impl), device=torch.device("cpu"), seed=0, **options)
    return {(row.implementation, row.group): row for row in found}


def test_rows_are_per_implementation_and_group():
    rows = rows_of([_case("a/1"), _case("a/2"), _case("b/1"), _case("c/1", slow=True)])
    assert {key for key in rows if key[1]} == {(i, g) for i in ("reference", "torch") for g in "ab"}
    assert rows["torch", "a"].cases == 2 and rows["torch", "a"].state == "pass"
    assert ("torch", "c") in rows_of([_case("c/1", slow=True)], slow=True)


def test_an_op_without_triton_is_missing():
    assert rows_of([_case()])["triton", ""].state == "missing"
    assert "no cases" in rows_of([])["triton", ""].note


@pytest.mark.parametrize(
    ("wrong", "note"),
    [
        (lambda x, w, eps: x * 0, "off by"),
        (lambda x, w, eps: torch.empty_like(x), "NaN on one side"),
        (lambda x, w, eps: 1 / 0, "ZeroDivisionError"),
        (lambda x, w, eps: x[:1], "expected [3, 4]"),
    ],
)
def test_wrong_implementations_fail(wrong, note):
    row = rows_of([_case()], wrong)["torch", "group"]
    assert row.state == "fail" and note in row.note and row.note.startswith("group/case")


def test_skipped_cases_say_why():
    row = rows_of([_case(skip={"torch": "too wide"})])["torch", "group"]
    assert row.cases == 0 and "too wide" in row.note


def test_equal_generators_for_every_implementation():
    seen = []
    rows_of([_case()], lambda x, w, eps: seen.append(x.clone()) or x)
    rows_of([_case()], lambda x, w, eps: seen.append(x.clone()) or x)
    assert torch.equal(*seen)


def test_command_line_mistakes_are_one_line(capsys):
    for arguments, text in (
        (["check", "--op", "softmax"], "unknown op 'softmax': allowed are absorb_output, "),
        (
            ["check", "--impl", "cuda"],
            "unknown implementation 'cuda': allowed are reference, torch, cpp, triton",
        ),
        (["compile", "--target", "cuda"], "unknown target 'cuda': allowed are cuda:<capability>"),
        (["compile", "--op", "linear"], "no Triton kernel to compile"),
        (["compile", "--fast", "--write-docs"], "leave --op, --target and --fast out"),
        (["bench", "--op", "linear"], "no workload"),
    ):
        assert main(arguments) == 2
        error = capsys.readouterr().err
        assert text in error and error.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_a_gpu_is_asked_for_by_name(capsys):
    assert main(["bench"]) == 2
    assert "bench needs a GPU" in capsys.readouterr().err
    assert main(["check", "--device", "cuda"]) == 2
    assert "torch sees no GPU" in capsys.readouterr().err


def test_check_command(capsys):
    assert main(["check", "--op", "rms_norm", "--impl", "torch", "--impl", "triton", "--seed", "5"]) == 0
    out = capsys.readouterr().out
    assert "interpreter, seed 5" in out and re.search(r"rms_norm +│ triton +│ bf16", out)
    assert not re.search(r"rms_norm +│ cpp", out)


def test_every_op_is_on_triton():
    ops = find_ops()
    assert len(ops) >= 24
    assert {op.name for op in ops if "triton" not in op.implementations} == set(DENSE_GEMMS)
    with pytest.raises(UserError, match="unknown op"):
        find_ops(["nothing"])
