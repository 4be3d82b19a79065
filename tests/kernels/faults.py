"""Deliberate faults in kernel sources, and whether an op's check finds them. Runs under the interpreter."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from paths.kernels.cases import Case
from paths.kernels.tools.catalog import Op, find_ops
from paths.kernels.tools.check import Row, check_op


@dataclass(frozen=True)
class Fault:
    """`old` becomes `new` in the op's triton_impl.py (or another module of its folder).

    `cases`: part of the names of the check cases that are tried, to save time; all of them by default.
    """

    op: str
    what: str
    old: str
    new: str
    module: str = "triton_impl"
    cases: str = ""


@dataclass(frozen=True)
class _SomeCases(Op):
    cases: tuple[Case, ...] = ()

    def check_cases(self) -> list[Case]:
        return list(self.cases)


def assert_found(faults: Sequence[Fault]) -> None:
    """Every fault fails its op's check, and without it the op passes. All faults are of one op."""
    op = find_ops([faults[0].op])[0]
    tried = [case for case in op.check_cases() if any(fault.cases in case.name for fault in faults)]
    rows = _check(op, tried)
    assert not [row for row in rows if row.is_bad], [row.note for row in rows if row.is_bad]
    for fault in faults:
        assert fault.op == op.name
        with _patched(f"{op.package}.{op.folder.name}.{fault.module}", fault.old, fault.new):
            found = _first_failure(op, fault.cases)
        assert found is not None, f"{fault.op}: nothing noticed {fault.what}"
        print(f"{fault.op}: {fault.what}: {found.note}")


def _first_failure(op: Op, cases: str) -> Row | None:
    for case in op.check_cases():
        if not case.slow and cases in case.name:
            failed = [row for row in _check(op, [case]) if row.is_bad]
            if failed:
                return failed[0]
    return None


def _check(op: Op, cases: Sequence[Case]) -> list[Row]:
    chosen = _SomeCases(op.name, op.package, op.folder, tuple(case for case in cases if not case.slow))
    return check_op(chosen, device=torch.device("cpu"), seed=1, implementations=["triton"])


@contextmanager
def _patched(name: str, old: str, new: str) -> Iterator[None]:
    """The module comes from a patched copy of its file: Triton reads the source of what it interprets."""
    original = importlib.import_module(name)
    source = Path(str(original.__file__)).read_text(encoding="utf-8")
    assert old in source, f"{name} does not contain {old!r}"
    package, _, leaf = name.rpartition(".")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{leaf}.py"
        path.write_text(source.replace(old, new), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        setattr(sys.modules[package], leaf, module)
        try:
            spec.loader.exec_module(module)
            yield
        finally:
            sys.modules[name] = original
            setattr(sys.modules[package], leaf, original)
