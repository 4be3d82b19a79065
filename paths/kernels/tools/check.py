"""Checks every implementation of an op against its definition, on memory full of NaN."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paths.dsa_mrv2.kernels.describe import DENSE_GEMMS
from paths.kernels.cases import Call, Case
from paths.kernels.launching import recording
from paths.kernels.tools.catalog import IMPLEMENTATIONS, Op, Unavailable
from paths.kernels.tools.comparison import Difference, compare
from paths.kernels.tools.poison import Guards, poisoned_memory

DEFINITION = "reference"


@dataclass
class Row:
    """One op × implementation × group of cases. `state`: pass, fail, skip or missing."""

    op: str
    implementation: str
    group: str
    cases: int = 0
    worst: float = 0.0
    excess: float = 0.0
    state: str = "pass"
    note: str = ""

    @property
    def is_bad(self) -> bool:
        return self.state in ("fail", "missing")

    def add(self, case: str, difference: Difference) -> None:
        self.cases += 1
        self.worst = max(self.worst, difference.worst)
        self.excess = max(self.excess, difference.excess)
        if difference.fault and self.state != "fail":
            self.state, self.note = "fail", f"{case}: {difference.fault}"


@dataclass
class _Table:
    op: Op
    rows: dict[tuple[str, str], Row] = field(default_factory=dict)

    def row(self, implementation: str, group: str) -> Row:
        return self.rows.setdefault((implementation, group), Row(self.op.name, implementation, group))


def check_op(
    op: Op,
    *,
    device: torch.device,
    seed: int,
    implementations: Iterable[str] = IMPLEMENTATIONS,
    slow: bool = False,
) -> list[Row]:
    """Rows of one op; a failure of any kind is a row, never an exception."""
    table = _Table(op)
    wanted = [name for name in implementations if name in op.implementations]
    missing = _missing(op)
    if missing is not None:
        table.rows[("triton", "")] = missing
    cases = [case for case in op.check_cases() if slow or not case.slow]
    with poisoned_memory() as guards, recording() as launches:
        for case in cases:
            _check_case(table, case, wanted, device, seed, guards)
    if cases and "triton" in wanted and not any(row.is_bad for row in table.rows.values()):
        compiled = {spec.launch.key for spec in op.compile_specs()}
        unlisted = sorted({str(one.key) for one in launches if one.key not in compiled})
        if unlisted:
            note = f"{len(unlisted)} launched but not in the compile list: {unlisted[0]}"
            table.rows[("triton", "compile list")] = Row(
                op.name, "triton", "compile list", state="fail", note=note
            )
    return list(table.rows.values())


def _missing(op: Op) -> Row | None:
    if op.name in DENSE_GEMMS:
        return Row(op.name, "triton", "", state="skip", note="a dense GEMM: the vendor's library")
    absent = [
        what
        for what, there in (
            ("Triton implementation", "triton" in op.implementations),
            ("cases", op.check_cases()),
        )
        if not there
    ]
    return Row(op.name, "triton", "", state="missing", note="no " + ", no ".join(absent)) if absent else None


def _check_case(
    table: _Table,
    case: Case,
    implementations: list[str],
    device: torch.device,
    seed: int,
    guards: Guards,
) -> None:
    case_seed = zlib.crc32(f"{seed}/{table.op.name}/{case.name}".encode())
    expected: dict[str, Tensor] | None = None
    for implementation in [DEFINITION, *(name for name in implementations if name != DEFINITION)]:
        row = table.row(implementation, case.group)
        if implementation in case.skip:
            row.note = f"{case.name} left out: {case.skip[implementation]}"
            continue
        if implementation == "cpp" and device.type != "cpu":
            row.state, row.note = "skip", "runs on the CPU only"
            continue
        guards.release()
        call = case.make(torch.Generator().manual_seed(case_seed), device)
        try:
            outputs = _run(table.op, implementation, call)
        except Unavailable as reason:
            row.state, row.note = "skip", str(reason)
            continue
        except Exception as error:  # noqa: BLE001  # whatever a kernel throws is a row of the table
            row.add(case.name, Difference(fault=f"{type(error).__name__}: {error}"[:300]))
            if implementation == DEFINITION:
                return
            continue
        if expected is None:
            expected = outputs
        difference = compare(outputs, expected, call.tolerance)
        if not guards.release():
            difference = Difference(difference.worst, difference.excess, "wrote outside of its outputs")
        row.add(case.name, difference)


def _run(op: Op, implementation: str, call: Call) -> dict[str, Tensor]:
    """Outputs as copies: a later call may write the same memory."""
    result = op.function(implementation, call.function)(*call.args, **call.kwargs)
    return {name: tensor.detach().clone() for name, tensor in call.outputs(result).items()}
