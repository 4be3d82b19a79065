"""Launches Triton kernels with stored tile configurations, and can write down what it launches.

Every launcher goes through `launch`. Under `recording` the launches are noted; under `tracing` they are noted
and not run, so that the launcher of an op, called on meta tensors, says what has to be compiled for a shape.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

POINTER_NAMES = {
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8e4nv",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.bool: "i1",
    torch.int32: "i32",
    torch.int64: "i64",
}


@dataclass(frozen=True)
class TileConfig:
    """How a kernel is cut up: `tiles` are handed to it as constants (BLOCK_M=64, ...).

    fuse: products and sums may become fused ones, which round once where torch rounds twice. Kernels whose
    output has to equal torch's to the byte switch it off.
    """

    num_warps: int = 4
    num_stages: int = 2
    tiles: Mapping[str, int] = field(default_factory=dict)
    fuse: bool = True


@dataclass(frozen=True)
class Target:
    """What a launcher picks tiles for: kind `cuda`, `hip` or `interpreter`; arch 90, 100, "gfx942", ..."""

    kind: str
    arch: int | str

    @property
    def has_e4m3_matrix(self) -> bool:
        """Matrix instructions take OCP e4m3. gfx942 knows another e4m3 only: its kernels widen first."""
        if self.kind == "hip":
            return str(self.arch) in ("gfx950", "gfx1200", "gfx1201")
        return self.kind == "interpreter" or int(self.arch) >= 89


@dataclass(frozen=True)
class Launch:
    """One launch as a compiler sees it: what `key` says is compiled once."""

    kernel: Any
    signature: Mapping[str, str]  # argument → "*bf16", "i32", "i64", "fp32"
    constexprs: Mapping[str, Any]
    divisible: frozenset[str]  # pointers and integers that are multiples of 16
    num_warps: int
    num_stages: int
    fuse: bool = True

    @property
    def key(self) -> tuple[Any, ...]:
        """Without `divisible` and the width of integers: those follow the data, not the configuration."""
        signature = tuple((n, "i" if t in ("i32", "i64") else t) for n, t in sorted(self.signature.items()))
        constants = tuple((n, str(v)) for n, v in sorted(self.constexprs.items()))
        return (self.kernel.fn.__name__, signature, constants, self.num_warps, self.num_stages, self.fuse)


@dataclass
class _Recorder:
    launches: list[Launch]
    run: bool
    target: Target | None


_recorder: ContextVar[_Recorder | None] = ContextVar("launch recorder", default=None)


def launch(
    kernel: Any,
    grid: Sequence[int] | Callable[[dict[str, Any]], tuple[int, ...]],
    *args: Any,
    config: TileConfig,
    **constexprs: Any,
) -> None:
    """Run `kernel` on `grid` with positional `args`, the constants given here and those of `config.tiles`.

    An empty grid launches nothing.
    """
    constants = {**config.tiles, **constexprs}
    blocks = grid(constants) if callable(grid) else tuple(grid)
    if 0 in blocks:
        return
    recorder = _recorder.get()
    if recorder is not None:
        recorder.launches.append(_describe(kernel, args, constants, config))
        if not recorder.run:
            return
    kernel[blocks](
        *args,
        **constants,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        enable_fp_fusion=config.fuse,
    )


@contextmanager
def recording() -> Iterator[list[Launch]]:
    """Note every launch of this context beside running it."""
    yield from _record(_Recorder([], run=True, target=None))


@contextmanager
def tracing(target: Target = Target("cuda", 90)) -> Iterator[list[Launch]]:
    """Note every launch of this context and run none; launchers choose tiles for `target`."""
    yield from _record(_Recorder([], run=False, target=target))


def _record(recorder: _Recorder) -> Iterator[list[Launch]]:
    token = _recorder.set(recorder)
    try:
        yield recorder.launches
    finally:
        _recorder.reset(token)


def target_of(device: torch.device) -> Target:
    """What kernels on `device` are compiled for; inside `tracing`, the traced target."""
    recorder = _recorder.get()
    if recorder is not None and recorder.target is not None:
        return recorder.target
    if device.type != "cuda":
        return Target("interpreter", 0)
    if torch.version.hip:
        return Target("hip", torch.cuda.get_device_properties(device).gcnArchName.split(":")[0])
    major, minor = torch.cuda.get_device_capability(device)
    return Target("cuda", 10 * major + minor)


def _describe(kernel: Any, args: Sequence[Any], constants: Mapping[str, Any], config: TileConfig) -> Launch:
    names = [name for name in inspect.signature(kernel.fn).parameters if name not in constants]
    signature: dict[str, str] = {}
    fixed = dict(constants)
    divisible = set()
    for name, value in zip(names, args, strict=True):
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and value == 1):
            fixed[name] = value  # Triton compiles absent pointers and ones in as constants
            continue
        signature[name] = _type_name(value)
        if isinstance(value, Tensor) or (type(value) is int and value % 16 == 0):
            divisible.add(name)
    return Launch(
        kernel, signature, fixed, frozenset(divisible), config.num_warps, config.num_stages, config.fuse
    )


def _type_name(value: Any) -> str:
    if isinstance(value, Tensor):
        return "*" + POINTER_NAMES[value.dtype]
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    return "fp32"
