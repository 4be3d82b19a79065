"""Every op, found by its folder: where its implementations, check cases and compile list are."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from paths.api import UserError
from paths.kernels.cases import Case
from paths.kernels.compile_specs import CompileSpec

IMPLEMENTATIONS = ("reference", "torch", "cpp", "triton")
_PACKAGES = ("paths.kernels", "paths.dsa_mrv2.kernels")


class Unavailable(Exception):
    """An implementation that cannot run here, and why."""


@dataclass(frozen=True)
class Op:
    """One op's folder. In a fused op's folder composed.py stands for every definition that is not there."""

    name: str
    package: str
    folder: Path

    @property
    def is_fused(self) -> bool:
        return self.package != _PACKAGES[0]

    @property
    def implementations(self) -> tuple[str, ...]:
        return tuple(name for name in IMPLEMENTATIONS if self._source(name) is not None)

    def function(self, implementation: str, name: str | None = None) -> Callable[..., Any]:
        """The callable `name`, by default the op's. Raises Unavailable where it cannot run here."""
        wanted = name or self.name
        source = self._source(implementation)
        if source is None:
            raise Unavailable(f"{self.name} has no {implementation} implementation")
        if source == "cpu":
            return self._cpp_function(wanted)
        function = getattr(self._module(source), wanted)
        if source != "composed":
            return function
        from paths.kernels.registry import Kernels  # here: only compositions need an engine's ops

        return partial(function, Kernels(torch.device("cpu"), implementation))

    def check_cases(self) -> list[Case]:
        return self._module("cases").check_cases() if self._has("cases") else []

    def compile_specs(self) -> list[CompileSpec]:
        for module in ("compile", "triton_impl"):
            if self._has(module) and hasattr(self._module(module), "compile_specs"):
                return self._module(module).compile_specs()
        return []

    def _source(self, implementation: str) -> str | None:
        """Name of the file that has it, without suffix."""
        if implementation == "cpp":
            return "cpu" if (self.folder / "cpu.cpp").is_file() else None
        own = {"reference": "reference", "torch": "torch_impl", "triton": "triton_impl"}[implementation]
        if self._has(own):
            return own
        return "composed" if implementation != "triton" and self._has("composed") else None

    def _has(self, module: str) -> bool:
        return (self.folder / f"{module}.py").is_file()

    def _module(self, module: str) -> Any:
        return import_module(f"{self.package}.{self.folder.name}.{module}")

    def _cpp_function(self, name: str) -> Callable[..., Any]:
        from paths.kernels.cpp import CppUnavailable

        module = import_module("paths.dsa_mrv2.kernels.cpp" if self.is_fused else "paths.kernels.cpp")
        try:
            library = module.load()
        except CppUnavailable as error:
            raise Unavailable(str(error)) from error
        return getattr(library, name)


def find_ops(wanted: Iterable[str] = ()) -> list[Op]:
    """All ops, or those in `wanted`, by name. Raises UserError for one that there is not."""
    found = {op.name: op for package in _PACKAGES for op in _ops_of(package)}
    names = list(wanted) or sorted(found)
    for name in names:
        if name not in found:
            raise UserError(f"unknown op {name!r}: allowed are {', '.join(sorted(found))}")
    return [found[name] for name in names]


def _ops_of(package: str) -> list[Op]:
    root = Path(str(import_module(package).__file__)).parent
    definitions = [*root.glob("*/reference.py"), *root.glob("*/composed.py")]
    return [Op(folder.name, package, folder) for folder in sorted({path.parent for path in definitions})]
