"""Stretches of operators run by C++: one Python call for all of them.

An operator called from Python spends more on its arguments than a small kernel takes.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paths.graphs.generated import GeneratedKernel
from paths.graphs.program import Instruction, Value, last_uses, values_in
from paths.kernels.cpp import load_operators

NAMESPACE = "dsa_graphs"
MOST_POINTERS = 64  # arguments of a generated kernel
# type in an operator's schema → what is passed to it as it is
TAKEN: dict[str, Any] = {
    "Tensor": Tensor,
    "int": (int, torch.dtype),  # a dtype is declared as a number
    "SymInt": int,
    "float": float,
    "bool": bool,
    "str": str,
    "number": (bool, int, float),
}


def load_native() -> Any:
    """The operators that build and run programs. Raises CppUnavailable."""
    return load_operators(NAMESPACE, Path(__file__).parent)


def join_stretches(instructions: Sequence[Instruction], native: Any) -> list[Instruction]:
    """The same program with every run of operators that C++ can call as one instruction."""
    joined: list[Instruction] = []
    stretch: list[tuple[Instruction, list[Any]]] = []
    uses = last_uses(instructions)
    for place, instruction in enumerate([*instructions, None]):
        arguments = None if instruction is None else native_arguments(instruction)
        if instruction is not None and arguments is not None:
            stretch.append((instruction, arguments))
            continue
        if len(stretch) > 1:
            joined.append(_Stretch(stretch, uses, end=place).build(native))
        else:
            joined += [single for single, _ in stretch]
        stretch = []
        if instruction is not None:
            joined.append(instruction)
    return joined


def native_arguments(instruction: Instruction) -> list[Any] | None:
    """One entry per argument of the operator's schema or kernel; None for what only Python can call."""
    target = instruction.target
    if isinstance(target, GeneratedKernel):
        return list(instruction.args) if _is_kernel_call(instruction.args) else None
    if not isinstance(target, torch._ops.OpOverload):
        return None
    schema = target._schema
    if any(str(result.type) != "Tensor" for result in schema.returns):
        return None
    arguments = []
    for place, declared in enumerate(schema.arguments):
        if place < len(instruction.args):
            given = instruction.args[place]
        elif declared.name in instruction.kwargs:
            given = instruction.kwargs[declared.name]
        elif declared.has_default_value():
            given = declared.default_value
        else:
            return None
        kind = str(declared.type)
        if kind.startswith("Optional["):
            kind = kind.removeprefix("Optional[").removesuffix("]")
        if kind == "float" and type(given) is int:
            given = float(given)
        if not _fits(given, kind, optional=kind != str(declared.type)):
            return None
        arguments.append(given)
    return arguments


def _is_kernel_call(args: Sequence[Any]) -> bool:
    """Tensors, behind them sizes, and not too many."""
    sizes = [type(given) is int for given in args]
    known = all(isinstance(given, Value | Tensor | int) for given in args)
    return known and sizes == sorted(sizes) and len(args) <= MOST_POINTERS


def _fits(given: Any, kind: str, *, optional: bool) -> bool:
    if given is None:
        return optional
    if isinstance(given, Value):
        return kind == "Tensor"
    if kind == "List[Tensor]":
        return isinstance(given, list) and all(isinstance(item, Value | Tensor) for item in given)
    if kind == "List[int]":
        return isinstance(given, list) and len(given) > 0 and all(type(item) is int for item in given)
    taken = TAKEN.get(kind)
    return (
        taken is not None
        and isinstance(given, taken)
        and (kind in ("bool", "number") or type(given) is not bool)
    )


def _is_tensors(given: Any) -> bool:
    """Whether an argument is a list of tensors, which a program puts together before the call."""
    return isinstance(given, list) and not any(type(item) is int for item in given)


class _Stretch:
    """Instructions `end - len(calls)` up to `end` as one program of registers."""

    def __init__(
        self, calls: Sequence[tuple[Instruction, list[Any]]], uses: dict[int, int], *, end: int
    ) -> None:
        self._calls = calls
        self._uses = uses
        self._first, self._end = end - len(calls), end
        made = {value.number for instruction, _ in calls for value in _results(instruction) if value}
        read = [value.number for _, arguments in calls for value in values_in(arguments)]
        self._inputs = [number for number in dict.fromkeys(read) if number not in made]
        self._outputs = [number for number in sorted(made) if uses.get(number, -1) >= end]
        self._registers = {number: place for place, number in enumerate([*self._inputs, *sorted(made)])}
        self._num_lists = sum(_is_tensors(given) for _, arguments in calls for given in arguments)

    def build(self, native: Any) -> Instruction:
        outputs = [self._registers[number] for number in self._outputs]
        values = len(self._registers)
        program = native.create.default(values + self._num_lists, len(self._inputs), outputs)
        lists = iter(range(values, values + self._num_lists))
        constants: dict[int, int] = {}
        for place, (instruction, arguments) in enumerate(self._calls, start=self._first):
            if isinstance(instruction.target, GeneratedKernel):
                self._add_kernel(native, program, constants, instruction.target, arguments, place)
                continue
            schema = instruction.target._schema  # type: ignore[attr-defined]  # an operator
            given_as, made_lists = [], []
            for given in arguments:
                if _is_tensors(given):
                    items = [self._argument(native, program, constants, item) for item in given]
                    made_lists.append(next(lists))
                    native.add_list.default(program, items, made_lists[-1])
                    given_as.append(made_lists[-1])
                else:
                    given_as.append(self._argument(native, program, constants, given))
            native.add_call.default(
                program,
                schema.name,
                schema.overload_name,
                given_as,
                [self._register(value) for value in _results(instruction)],
                made_lists + self._freed(arguments, place),
            )
        run = partial(native.run.default, program)
        weakref.finalize(run, native.destroy.default, program)
        return Instruction(
            target=run,
            args=([Value(number) for number in self._inputs],),
            kwargs={},
            outputs=tuple(Value(number) for number in self._outputs) or None,
        )

    def _add_kernel(
        self,
        native: Any,
        program: int,
        constants: dict[int, int],
        kernel: GeneratedKernel,
        arguments: Sequence[Any],
        place: int,
    ) -> None:
        sizes = [given for given in arguments if type(given) is int]
        tensors = arguments[: len(arguments) - len(sizes)]
        native.add_kernel.default(
            program,
            kernel.address,
            [self._argument(native, program, constants, tensor) for tensor in tensors],
            sizes,
            self._freed(arguments, place),
        )

    def _freed(self, arguments: Sequence[Any], place: int) -> list[int]:
        """Registers that nobody reads behind instruction `place`."""
        last = {value.number for value in values_in(arguments) if self._uses[value.number] == place}
        return [self._registers[number] for number in last]

    def _argument(self, native: Any, program: int, constants: dict[int, int], given: Any) -> int:
        if isinstance(given, Value):
            return self._registers[given.number]
        key = id(given)
        if not isinstance(given, Tensor) or key not in constants:
            constants[key] = native.add_constant.default(program, given)
        return -1 - constants[key]

    def _register(self, value: Value | None) -> int:
        return -1 if value is None or value.number not in self._uses else self._registers[value.number]


def _results(instruction: Instruction) -> tuple[Value | None, ...]:
    """One entry per result of the operator's schema."""
    if isinstance(instruction.outputs, tuple):
        return instruction.outputs
    if isinstance(instruction.target, GeneratedKernel):
        return ()
    count = len(instruction.target._schema.returns)  # type: ignore[attr-defined]  # an operator
    return () if count == 0 else (instruction.outputs,)
