"""Compiles an op's kernels ahead of time for a target that need not be there."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from paths.api import UserError
from paths.kernels.compile_specs import CompileSpec
from paths.kernels.launching import Target, tracing
from paths.kernels.tools.binary import Binary, inspect_cuda, inspect_hip
from paths.kernels.tools.catalog import Op

DEFAULT_TARGETS = ("cuda:90", "cuda:100", "hip:gfx942")


@dataclass
class CompiledRow:
    """One kernel for one target. `fault` says what is wrong with it."""

    op: str
    label: str
    kernel: str
    target: str
    tiles: str
    registers: str = ""
    spilled: int = 0
    shared: int = 0
    matrix: str = ""
    notes: str = ""
    fault: str = ""
    of_check: bool = False


def parse_target(text: str) -> Target:
    """`cuda:90` or `hip:gfx942`. Raises UserError."""
    if match := re.fullmatch(r"cuda:(\d{2,3})", text):
        return Target("cuda", int(match[1]))
    if match := re.fullmatch(r"hip:(gfx\w+)", text):
        return Target("hip", match[1])
    raise UserError(
        f"unknown target {text!r}: allowed are cuda:<capability> and hip:<gfx>, as {DEFAULT_TARGETS}"
    )


def specs_of(op: Op, target: Target, *, fast: bool = False) -> list[CompileSpec]:
    """The op's compile list for `target`, equal entries once; fast: the first of each kernel."""
    with tracing(target):
        listed = op.compile_specs()
    found: dict[Any, CompileSpec] = {}
    for spec in sorted(listed, key=lambda spec: spec.of_check):  # production names the entry
        key = (spec.launch.key, spec.launch.divisible)
        found[key] = _merged(found[key], spec) if key in found else spec
    if not fast:
        return list(found.values())
    first: dict[str, CompileSpec] = {}
    for spec in sorted(found.values(), key=lambda spec: not spec.matrix):
        first.setdefault(spec.kernel.fn.__name__, spec)
    return list(first.values())


def _merged(one: CompileSpec, other: CompileSpec) -> CompileSpec:
    """One binary under both labels."""
    label = one.label
    if other.label not in label and not other.of_check:
        label = f"{label}; {other.label}"
    return replace(one, label=label, matrix=one.matrix or other.matrix)


def compile_op(op: Op, target_text: str, *, fast: bool = False) -> list[CompiledRow]:
    """A row per entry of the compile list; what fails to compile is a row with a fault."""
    target = parse_target(target_text)
    specs = specs_of(op, target, fast=fast)
    if not specs:
        return [CompiledRow(op.name, "-", "-", target_text, "", fault="the op has no compile list")]
    return [_row(spec, target, target_text) for spec in specs]


def _row(spec: CompileSpec, target: Target, target_text: str) -> CompiledRow:
    tiles = [f"{n}={v}" for n, v in spec.constexprs.items() if n.startswith("BLOCK") or n.endswith("BLOCK")]
    row = CompiledRow(
        spec.op,
        spec.label,
        spec.kernel.fn.__name__,
        target_text,
        " ".join([*tiles, f"w{spec.num_warps}", f"s{spec.num_stages}"]),
        notes=spec.notes,
        of_check=spec.of_check,
    )
    try:
        binary = compile_spec(spec, target)
    except Exception as error:  # noqa: BLE001  # compilers throw anything; each is a row of the table
        row.fault = f"does not compile: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        return row
    row.registers, row.spilled, row.shared = binary.registers, binary.spilled, binary.shared
    row.matrix = ", ".join(binary.matrix)
    row.fault = "; ".join(_faults(spec, binary))
    return row


def compile_spec(spec: CompileSpec, target: Target) -> Binary:
    """Compile as the launcher would on `target`: same constants, same known alignments, same options."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = list(inspect.signature(spec.kernel.fn).parameters)
    missing = [n for n in names if n not in spec.signature and n not in spec.constexprs]
    if missing:
        raise ValueError(f"the spec says nothing about {', '.join(missing)}")
    source = ASTSource(
        fn=spec.kernel,
        signature={n: spec.signature.get(n, "constexpr") for n in names},
        constexprs={(names.index(n),): v for n, v in spec.constexprs.items()},
        attrs={(names.index(n),): [["tt.divisibility", 16]] for n in spec.launch.divisible},
    )
    compiled = triton.compile(
        source,
        target=GPUTarget(target.kind, target.arch, 64 if target.kind == "hip" else 32),
        options={"num_warps": spec.num_warps, "num_stages": spec.num_stages, "enable_fp_fusion": spec.fuse},
    )
    if target.kind == "hip":
        return inspect_hip(compiled.asm["amdgcn"], compiled.metadata.shared)
    return inspect_cuda(compiled.asm["ptx"], int(target.arch), compiled.metadata.shared, fuse=spec.fuse)


def _faults(spec: CompileSpec, binary: Binary) -> Iterable[str]:
    if binary.spilled > spec.spills and not spec.of_check:  # what only the checks run may be slow
        yield f"spills {binary.spilled} bytes, accepted are {spec.spills}"
    if spec.spills and not spec.notes:
        yield "accepts spills and does not say why"
    if spec.matrix and not binary.matrix:
        yield "no matrix instruction"
