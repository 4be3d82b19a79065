"""The code that Inductor writes for a compiled piece, and what it calls when it runs under a recording."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import BuiltinFunctionType, ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._inductor import output_code

# what such code calls beside its kernels: operators, which a recording sees, checks, and these two functions
OPERATORS = frozenset({"torch", "aten", "extern_kernels", "inductor_ops"})
CHECKS = frozenset({"assert_size_stride", "assert_alignment"})  # of what the capture shows once and for all
ALLOCATE, REINTERPRET = "empty_strided_cpu", "reinterpret_tensor"
reinterpret = torch.ops.inductor._reinterpret_tensor.default


@dataclass(frozen=True)
class GeneratedKernel:
    """Loops in C++: called with tensors, behind them with sizes; what stands at `address` with pointers."""

    function: Callable[..., None]
    address: int

    def __call__(self, *args: Tensor | int) -> None:
        self.function(*args)


class CallRecorder(Protocol):
    """Takes down what generated code calls."""

    def record(
        self, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """A call that was made."""

    def computes(self, tensor: Tensor) -> bool:
        """Whether a recorded call returned it: it is another tensor in each replay."""


class GeneratedCode:
    """A module that Inductor wrote for one piece."""

    def __init__(self, names: dict[str, Any], kernels: Mapping[str, GeneratedKernel]) -> None:
        self._names, self._kernels = names, kernels

    @contextmanager
    def recorded(self, recorder: CallRecorder, scratch: Scratch) -> Iterator[None]:
        """Inside, each of its calls is made and recorded, and what it allocates stands in `scratch`."""
        own = {name: self._names[name] for name in (*self._kernels, ALLOCATE, REINTERPRET)}
        self._names.update({name: _recording(recorder, kernel) for name, kernel in self._kernels.items()})
        self._names[ALLOCATE] = scratch.take
        self._names[REINTERPRET] = _recording_views(recorder, own[REINTERPRET])
        try:
            yield
        finally:
            self._names.update(own)


class Scratch:
    """Memory of pieces that run one after the other: what one of them has used, the next one uses again."""

    def __init__(self) -> None:
        self._free: list[Tensor] = []
        self._taken: list[Tensor] = []  # by the running piece
        self._kept: list[Tensor] = []  # results of pieces, needed until the pass ends

    def take(self, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor in the smallest piece of memory that is large enough."""
        extent = 0 if 0 in size else 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        wanted = -(-max(1, extent * dtype.itemsize) // 64) * 64
        fitting = [block for block in self._free if len(block) >= wanted]
        if fitting:
            block = min(fitting, key=len)
            self._free = [other for other in self._free if other is not block]
        else:
            block = torch.empty(wanted, dtype=torch.uint8)
        self._taken.append(block)
        whole = len(block) // dtype.itemsize * dtype.itemsize
        return block[:whole].view(dtype).as_strided(size, stride)

    def end_piece(self, results: Sequence[Any]) -> None:
        """All memory but that of its results is free again."""
        kept = {item.untyped_storage().data_ptr() for item in results if isinstance(item, Tensor)}
        for block in self._taken:
            (self._kept if block.data_ptr() in kept else self._free).append(block)
        self._taken = []

    def end_pass(self) -> None:
        """All memory is free again."""
        self._free += self._kept
        self._kept = []


@contextmanager
def catch_generated() -> Iterator[list[GeneratedCode | None]]:
    """What a compilation inside generates, cached or not; None where it calls what cannot be recorded.

    Nothing is caught where torch hands its generated code over in another way than this version does.
    """
    caught: list[GeneratedCode | None] = []
    graphs: Any = getattr(output_code, "CompiledFxGraph", None)
    finish = getattr(graphs, "post_compile", None)
    if finish is None:
        yield caught
        return

    def post_compile(graph: Any, *args: Any, **kwargs: Any) -> None:
        finish(graph, *args, **kwargs)
        caught.append(_code_of(graph))

    graphs.post_compile = post_compile
    try:
        yield caught
    finally:
        graphs.post_compile = finish


def _code_of(graph: Any) -> GeneratedCode | None:
    call = getattr(type(getattr(graph, "compiled_fn_runner", None)), "call", None)
    if call is None:
        return None
    names = call.__globals__
    called = {name for name in call.__code__.co_names if callable(names.get(name)) or name in OPERATORS}
    kernels = {}
    for name in called - OPERATORS - CHECKS - {ALLOCATE, REINTERPRET}:
        kernel = _kernel(names[name])
        if kernel is None:
            return None
        kernels[name] = kernel
    return GeneratedCode(names, kernels) if {ALLOCATE, REINTERPRET} <= names.keys() else None


def _kernel(function: Any) -> GeneratedKernel | None:
    """Where a function is Inductor's binding of its C++."""
    module = getattr(function, "__self__", None)
    if not isinstance(function, BuiltinFunctionType) or not isinstance(module, ModuleType):
        return None
    library = getattr(module, "__file__", None)
    symbol = None if library is None else getattr(ctypes.CDLL(library), "kernel", None)
    address = None if symbol is None else ctypes.cast(symbol, ctypes.c_void_p).value
    return None if address is None else GeneratedKernel(function, address)


def _recording(recorder: CallRecorder, kernel: GeneratedKernel) -> Callable[..., None]:
    def call(*args: Tensor | int) -> None:
        kernel(*args)
        recorder.record(kernel, args, {}, None)

    return call


def _recording_views(recorder: CallRecorder, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Views of memory that stays are made once, those of what a call returns in each replay."""

    def view(tensor: Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> Tensor:
        made = function(tensor, size, stride, offset)
        if recorder.computes(tensor):
            recorder.record(reinterpret, (tensor, list(size), list(stride), offset), {}, made)
        return made

    return view
