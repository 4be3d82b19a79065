"""A straight-line program of recorded calls, compiled to one Python function without a loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Value:
    """Result number `number` of the program."""

    number: int


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """`outputs = target(*args, **kwargs)`; arguments may contain values, also inside lists and tuples.

    outputs: one value, or one entry per element of a returned sequence, None for what is not assigned.
    """

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: Value | tuple[Value | None, ...] | None


def compile_program(instructions: Sequence[Instruction]) -> Callable[[], None]:
    """One function that makes the calls in order. Everything else that the arguments hold is bound to it."""
    return _Source(instructions).compile()


class _Source:
    def __init__(self, instructions: Sequence[Instruction]) -> None:
        self._instructions = instructions
        self._constants: dict[str, Any] = {}
        self._names: dict[int, str] = {}  # id of a constant → its parameter
        self._registers: dict[int, str] = {}  # live value → local variable
        self._free: list[str] = []
        self._created = 0

    def compile(self) -> Callable[[], None]:
        last_use = last_uses(self._instructions)
        lines = []
        for place, instruction in enumerate(self._instructions):
            call = self._call(instruction)
            used_up = [n for n in self._registers if last_use[n] == place]
            freed = [self._registers.pop(number) for number in used_up]
            lines.append(f"    {self._target(instruction.outputs, last_use)}{call}")
            if freed:  # memory goes back as early as in eager code: what follows finds it in the cache
                lines.append(f"    del {', '.join(freed)}")
                self._free += freed
        parameters = ", ".join(f"{name}={name}" for name in self._constants)
        source = "\n".join([f"def replay({parameters}):", *(lines or ["    pass"])])
        scope = dict(self._constants)
        exec(compile(source, "<captured graph>", "exec"), scope)
        return scope["replay"]

    def _call(self, instruction: Instruction) -> str:
        args = [self._render(arg) for arg in instruction.args]
        args += [f"{name}={self._render(arg)}" for name, arg in instruction.kwargs.items()]
        return f"{self._constant(instruction.target)}({', '.join(args)})"

    def _target(self, outputs: Value | tuple[Value | None, ...] | None, last_use: dict[int, int]) -> str:
        if outputs is None:
            return ""
        single = isinstance(outputs, Value)
        names = []
        for value in (outputs,) if isinstance(outputs, Value) else outputs:
            if value is None or value.number not in last_use:
                names.append("_")
            else:
                names.append(self._register(value.number))
        if all(name == "_" for name in names):
            return ""
        return f"{names[0]} = " if single else f"({', '.join(names)},) = "

    def _register(self, number: int) -> str:
        if not self._free:
            self._free.append(f"v{self._created}")
            self._created += 1
        self._registers[number] = self._free.pop()
        return self._registers[number]

    def _render(self, arg: Any) -> str:
        if isinstance(arg, Value):
            return self._registers[arg.number]
        if type(arg) in (list, tuple) and any(True for _ in values_in(arg)):
            inner = ", ".join(self._render(item) for item in arg)
            return f"[{inner}]" if isinstance(arg, list) else f"({inner},)"
        if arg is None or type(arg) in (bool, int, str) or (type(arg) is float and math.isfinite(arg)):
            return repr(arg)
        return self._constant(arg)

    def _constant(self, thing: Any) -> str:
        if id(thing) not in self._names:
            self._names[id(thing)] = f"c{len(self._names)}"
            self._constants[self._names[id(thing)]] = thing
        return self._names[id(thing)]


def last_uses(instructions: Sequence[Instruction]) -> dict[int, int]:
    """Number of a value → place of the last instruction that reads it."""
    return {
        value.number: place
        for place, instruction in enumerate(instructions)
        for value in values_in([*instruction.args, *instruction.kwargs.values()])
    }


def values_in(items: Any) -> Iterator[Value]:
    """The values among arguments, also inside lists and tuples."""
    for item in items:
        if isinstance(item, Value):
            yield item
        elif type(item) in (list, tuple):
            yield from values_in(item)
