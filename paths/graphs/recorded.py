"""Graphs on the CPU: what one forward pass calls is recorded and replayed without the model's Python.

A tensor that the pass allocates without computing it is a static buffer, as are views of static tensors; all
else that it computes is a local value of one straight-line program. So nothing is copied between segments,
and what an eager part is given is always this replay's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from paths.graphs.backend import Recording, Replay
from paths.graphs.generated import GeneratedCode, Scratch
from paths.graphs.native import join_stretches
from paths.graphs.program import Instruction, Value, compile_program

aten = torch.ops.aten
ALLOCATIONS = frozenset(
    {
        aten.empty.memory_format,
        aten.empty_like.default,
        aten.empty_strided.default,
        aten.new_empty.default,
        aten.new_empty_strided.default,
    }
)
UNREPLAYABLE_TAGS = {
    torch.Tag.data_dependent_output: "its result depends on the data",
    torch.Tag.dynamic_output_shape: "its shape depends on the data",
    torch.Tag.nondeterministic_seeded: "it is random",
}
# composed operators without a tag, which inference mode shows whole
READS_VALUES = frozenset(
    {
        aten.item.default,
        aten.is_nonzero.default,
        aten.where.default,
        aten.repeat_interleave.self_Tensor,
    }
)
# tensor methods that bring values to Python without an operator
READS_UNSEEN = frozenset({"tolist", "numpy", "__array__"})
MASKS = (torch.bool, torch.uint8)
READS_HOST = frozenset({aten.lift_fresh.default, aten.lift_fresh_copy.default, aten.lift.default})


class RecordedBackend:
    """Recorded replay. inner: operator → Python implementation that is recorded in its place.

    native: `load_native()`, with which stretches of operators run without Python; None: one Python call each.
    """

    def __init__(self, inner: Mapping[Any, Callable[..., Any]] | None = None, native: Any = None) -> None:
        self._inner = dict(inner or {})
        self._native = native
        self._scratch = Scratch()  # replays run one after the other

    def session(self) -> AbstractContextManager[None]:
        return nullcontext()

    def recording(self) -> Recording:
        return RecordedPass(self._inner, self._native, self._scratch)

    def synchronize(self) -> None:
        """Nothing: an operator has finished when it returns."""

    def pool_bytes(self) -> None:
        """There is no pool."""


class RecordedPass:
    """One forward pass as instructions. Raises RuntimeError for an operator that cannot be replayed."""

    sees_kernels = False

    def __init__(self, inner: Mapping[Any, Callable[..., Any]], native: Any, scratch: Scratch) -> None:
        self._mode = _Recorder(inner)
        self._reads = _ReadGuard()
        self._native = native
        self._scratch = scratch
        self._counts: Counter[Callable[[int], None]] = Counter()
        self._open = False

    def begin(self) -> None:
        self._reads.__enter__()
        self._mode.__enter__()
        self._open = True

    def end(self) -> None:
        self._open = False
        self._mode.__exit__(None, None, None)
        self._reads.__exit__(None, None, None)

    def abort(self) -> None:
        if self._open:
            self.end()

    def call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._mode.__exit__(None, None, None)
        self._reads.active = False
        try:
            result = function(*args, **kwargs)
        finally:
            self._reads.active = True
            self._mode.__enter__()
        self._mode.record(function, args, kwargs, result)
        return result

    def generated(
        self,
        code: GeneratedCode,
        run: Callable[..., Any],
        args: tuple[Any, ...],
        *,
        count: Callable[[int], None],
    ) -> Any:
        with code.recorded(self._mode, self._scratch):
            results = run(*args)
        self._scratch.end_piece(results if isinstance(results, list | tuple) else [results])
        self._counts[count] += 1
        return results

    def eager(self, function: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._mode.record(function, args, kwargs, None)

    def break_output(self, like: Tensor, shape: Sequence[int]) -> Tensor:
        return like.new_empty(tuple(shape))

    def cross(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], *, writes: Tensor | None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return args, kwargs

    def keep(self, place: int, tensor: Tensor) -> Tensor:
        self._mode.buffers.append(tensor)
        return tensor

    def finish(self) -> Replay:
        self._scratch.end_pass()
        for count, times in self._counts.items():
            self._mode.record(count, (times,), {}, None)
        return self._mode.finish(self._native)


class _ReadGuard(TorchFunctionMode):
    """Refuses what the recorder does not see: a value that Python has read would be the capture's forever."""

    active = True  # torch sets a function mode aside while an operator runs: a call cannot leave it

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self.active and getattr(func, "__name__", "") in READS_UNSEEN:
            raise RuntimeError(f"{func.__name__}: it depends on the data, so a graph cannot replay it")
        return func(*args, **(kwargs or {}))


class _Recorder(TorchDispatchMode):
    def __init__(self, inner: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self._inner = inner
        self._instructions: list[Instruction] = []
        self._values: dict[int, Value] = {}
        self._kept: list[Tensor] = []  # alive until the end: an id must not come back as another tensor
        self.buffers: list[Tensor] = []  # allocated, not computed

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in self._inner:
            with self:
                return self._inner[func](*args, **kwargs)
        _refuse_unreplayable(func, args)
        result = func(*args, **kwargs)
        if func in ALLOCATIONS:
            self.buffers.append(result)
        elif not self._is_static_view(func, args, kwargs, result):
            self.record(func, args, kwargs, result)
        return result

    def record(
        self, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        given = {id(tensor) for tensor in tensors_in((args, kwargs))}
        recorded_args = tuple(self._argument(target, arg) for arg in args)
        recorded_kwargs = {name: self._argument(target, arg) for name, arg in kwargs.items()}
        outputs: Value | tuple[Value | None, ...] | None
        if isinstance(result, tuple | list):
            outputs = tuple(self._output(item, given) for item in result)
        else:
            outputs = self._output(result, given)
        self._instructions.append(
            Instruction(target=target, args=recorded_args, kwargs=recorded_kwargs, outputs=outputs)
        )

    def computes(self, tensor: Tensor) -> bool:
        return id(tensor) in self._values

    def finish(self, native: Any) -> Replay:
        instructions = self._instructions
        if native is not None:
            instructions = join_stretches(instructions, native)
        run = compile_program(instructions)
        replay = Replay(
            run=run, buffers=tuple(self.buffers), memory_bytes=sum(b.nbytes for b in self.buffers)
        )
        self._instructions, self._kept, self._values = [], [], {}
        return replay

    def _argument(self, target: Callable[..., Any], arg: Any) -> Any:
        if isinstance(arg, Tensor):
            return self._values.get(id(arg), arg)
        if type(arg) in (list, tuple):
            return type(arg)(self._argument(target, item) for item in arg)
        if any(id(tensor) in self._values for tensor in tensors_in(arg)):
            raise RuntimeError(
                f"{_name(target)}: a {type(arg).__name__} holds a tensor computed in this forward pass, "
                "which replay could not renew: pass the tensor itself"
            )
        return arg

    def _output(self, item: Any, given: set[int]) -> Value | None:
        """A new value, unless the call returned one of its arguments or no tensor."""
        if not isinstance(item, Tensor) or id(item) in given:
            return None
        value = self._values[id(item)] = Value(len(self._kept))
        self._kept.append(item)
        return value

    def _is_static_view(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> bool:
        if func._schema.is_mutable:
            return False
        sources = list(tensors_in((args, kwargs)))
        if not sources or any(id(tensor) in self._values for tensor in sources):
            return False
        storages = {_address(tensor) for tensor in sources} - {0}
        results = list(tensors_in(result))
        return bool(results) and all(_address(tensor) in storages for tensor in results)


def tensors_in(thing: Any) -> Iterator[Tensor]:
    """Every tensor of an argument, inside containers and dataclasses too."""
    if isinstance(thing, Tensor):
        yield thing
    elif isinstance(thing, list | tuple):
        for item in thing:
            yield from tensors_in(item)
    elif isinstance(thing, dict):
        for item in thing.values():
            yield from tensors_in(item)
    elif is_dataclass(thing) and not isinstance(thing, type):
        for field in fields(thing):
            yield from tensors_in(getattr(thing, field.name))


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _refuse_unreplayable(func: Any, args: tuple[Any, ...]) -> None:
    reason = next((why for tag, why in UNREPLAYABLE_TAGS.items() if tag in func.tags), None)
    if func is aten.index.Tensor and not any(mask.dtype in MASKS for mask in tensors_in(args[1])):
        reason = None  # only a mask makes its shape depend on the data
    if func in READS_VALUES:
        reason = "it depends on the data"
    if func in READS_HOST:
        reason = "it reads the host's memory"
    if reason is not None:
        raise RuntimeError(f"{func}: {reason}, so a graph cannot replay it")


def _name(target: Callable[..., Any]) -> str:
    return str(getattr(target, "__qualname__", target))
