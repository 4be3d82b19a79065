"""What has to be compiled ahead of time for one kernel, and how an op says so without writing it by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from paths.kernels.cases import Case
from paths.kernels.launching import Launch, Target, target_of, tracing

META = torch.device("meta")


@dataclass(frozen=True)
class CompileSpec:
    """One kernel for one shape class.

    `matrix`: its dot products must become matrix instructions. `spills` is how many spilled bytes are
    accepted, only with the reason in `notes`. `divisible`: arguments that are multiples of 16; None means
    every pointer. `of_check`: the check cases need it, production does not.
    """

    op: str
    label: str
    kernel: Any
    signature: Mapping[str, str]
    constexprs: Mapping[str, Any]
    num_warps: int
    num_stages: int
    matrix: bool = False
    notes: str = ""
    divisible: frozenset[str] | None = None
    spills: int = 0
    fuse: bool = True
    of_check: bool = False

    @property
    def launch(self) -> Launch:
        pointers = frozenset(name for name, kind in self.signature.items() if kind.startswith("*"))
        divisible = pointers if self.divisible is None else self.divisible
        return Launch(
            self.kernel,
            self.signature,
            self.constexprs,
            divisible,
            self.num_warps,
            self.num_stages,
            self.fuse,
        )


def traced(
    op: str,
    label: str,
    call: Callable[[], object],
    *,
    matrix: bool | Iterable[str] = False,
    notes: str = "",
    spills: int = 0,
) -> list[CompileSpec]:
    """Specs of every kernel that `call` would launch: a launcher called on tensors of `META`, nothing runs.

    matrix: True for all of these kernels, or the names of those that must use matrix instructions.
    """
    outer = target_of(META)  # the compile command chooses; sm_90 where nobody did
    with tracing(Target("cuda", 90) if outer.kind == "interpreter" else outer) as launches:
        call()
    must = None if isinstance(matrix, bool) else set(matrix)
    return [
        CompileSpec(
            op=op,
            label=label,
            kernel=one.kernel,
            signature=one.signature,
            constexprs=one.constexprs,
            num_warps=one.num_warps,
            num_stages=one.num_stages,
            fuse=one.fuse,
            matrix=bool(matrix) if must is None else one.kernel.fn.__name__ in must,
            notes=notes,
            divisible=one.divisible,
            spills=spills,
        )
        for one in launches
    ]


def of_cases(
    op: str, function: Callable[..., object], cases: Iterable[Case], *, matrix: bool | Iterable[str] = False
) -> list[CompileSpec]:
    """Specs of everything that the op's check cases launch; `function` is its Triton launcher."""
    found: dict[tuple[Any, ...], CompileSpec] = {}
    for case in cases:
        call = case.make(torch.Generator().manual_seed(0), torch.device("cpu"))
        run = partial(function, *call.args, **call.kwargs)
        for spec in traced(op, case.name, run, matrix=matrix):
            found.setdefault(spec.launch.key, replace(spec, of_check=True))
    return list(found.values())
