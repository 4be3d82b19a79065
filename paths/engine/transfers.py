"""An audit that sees every copy between host and device and every wait for the device, whoever makes it.

On an accelerator these are copies across devices and whatever brings a value to the host. On a CPU there is
one memory, so they are told by what they would be: host data that becomes a tensor (`torch.from_numpy`,
`torch.tensor`, an index given as a list) is a copy to the device; `.item()`, `.numpy()`, `nonzero` and their
kind are a copy to the host that waits.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from paths.engine.runner import Runner

aten = torch.ops.aten

# tensor methods that bring values to the host; the ops below them are not seen in every mode
READS = frozenset(
    {
        "item",
        "cpu",
        "numpy",
        "tolist",
        "is_nonzero",
        "__array__",
        "__bool__",
        "__int__",
        "__float__",
        "__index__",
        "__format__",
        "__contains__",
    }
)
# ops whose result's shape or value the host needs at once; inference mode shows composed ones whole
WAITING_OPS = frozenset(
    {
        aten._local_scalar_dense.default,
        aten.item.default,
        aten.nonzero.default,
        aten.where.default,
        aten.argwhere.default,
        aten.masked_select.default,
        aten.equal.default,
        aten.is_nonzero.default,
        aten._unique2.default,
        aten.unique_consecutive.default,
        aten.unique_dim.default,
        aten.bincount.default,
    }
)
_ABSENT = object()
_DRIVER_SAYS = "synchronizing CUDA operation"  # in the warning of torch.cuda.set_sync_debug_mode
REPEATING_OPS = frozenset({aten.repeat_interleave.Tensor, aten.repeat_interleave.self_Tensor})
INDEXING_OPS = frozenset({aten.index.Tensor, aten.index_put_.default, aten.index_put.default})


class TransferAudit:
    """What was seen, in words, inside `watching` or `of_steps`. Most waits are copies too."""

    def __init__(self, device: torch.device, *, errors: bool = False) -> None:
        """errors: on CUDA, a wait inside a step raises RuntimeError where it happens."""
        self.device = device
        self.copies: list[str] = []
        self.waits: list[str] = []
        self.driver_waits = 0  # what CUDA itself calls a synchronizing operation, inside steps
        self._errors = errors

    @contextmanager
    def watching(self) -> Iterator[TransferAudit]:
        """Everything that this block does."""
        with ExitStack() as stack:
            for owner in (torch.cuda.Event, torch.cuda.Stream, torch.cuda):
                stack.enter_context(_replaced(owner, "synchronize", self._waiting(owner.synchronize)))
            reads = stack.enter_context(_ReadMode(self))
            stack.enter_context(_DispatchMode(self, reads))
            yield self

    @contextmanager
    def of_steps(self, runner: Runner) -> Iterator[TransferAudit]:
        """What `runner.execute` does, and the copies of reading its output; waiting for that is outside."""
        execute = runner.execute

        def watched(*args: Any, **kwargs: Any) -> Any:
            with self.watching(), self._asking_the_driver():
                output = execute(*args, **kwargs)
            return _WatchedOutput(output, self)

        with _replaced(runner, "execute", watched):
            yield self

    @contextmanager
    def _asking_the_driver(self) -> Iterator[None]:
        """Warnings that are not the driver's own go where they would have gone, after the step."""
        if self.device.type != "cuda":
            yield
            return
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error" if self._errors else "warn")
        caught: list[warnings.WarningMessage] = []
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.filterwarnings("always", message=f".*{_DRIVER_SAYS}")
                yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
            for warning in caught:
                if _DRIVER_SAYS in str(warning.message):
                    self.driver_waits += 1
                else:
                    warnings.showwarning(
                        warning.message, warning.category, warning.filename, warning.lineno, warning.file
                    )

    def saw(self, what: str, *, waits: bool) -> None:
        self.copies.append(what)
        if waits:
            self.waits.append(what)

    def _waiting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            self.waits.append(function.__qualname__)
            return function(*args, **kwargs)

        return noted


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """owner.name is `value` inside this context."""
    own = vars(owner).get(name, _ABSENT)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, own)


class _WatchedOutput:
    """A step's output whose reading is seen by an audit of its own."""

    def __init__(self, output: Any, audit: TransferAudit) -> None:
        self._output = output
        self._audit = audit
        self.ready = output.ready

    def get(self) -> Any:
        with TransferAudit(self._audit.device).watching() as reading:
            result = self._output.get()
        self._audit.copies += reading.copies
        return result


class _ReadMode(TorchFunctionMode):
    """Sees Tensor.cpu and its kind. `inside`: their own ops are not seen twice."""

    def __init__(self, audit: TransferAudit) -> None:
        super().__init__()
        self._audit = audit
        self.inside = False

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = getattr(function, "__name__", "")
        reads = (
            name in READS and isinstance(args[0], Tensor) and args[0].device.type == self._audit.device.type
        )
        if not reads or self.inside:
            return function(*args, **(kwargs or {}))
        self._audit.saw(name, waits=True)
        self.inside = True
        try:
            return function(*args, **(kwargs or {}))
        finally:
            self.inside = False


class _DispatchMode(TorchDispatchMode):
    """Sees the ops themselves. Compiled code runs as it is; generated code copies nothing."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True

    def __init__(self, audit: TransferAudit, reads: _ReadMode) -> None:
        super().__init__()
        self._audit = audit
        self._reads = reads

    def __torch_dispatch__(
        self,
        function: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if not self._reads.inside:
            self._look(function, args, kwargs)
        return function(*args, **kwargs)

    def _look(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        audit, name = self._audit, str(function)
        if function in WAITING_OPS or _by_mask(function, args) or _repeats(function, kwargs):
            audit.saw(name, waits=True)
        elif function is aten.lift_fresh.default:
            # a number written into a view becomes a tensor without dimensions: an argument of a fill
            if audit.device.type == "cpu" and args[0].ndim > 0:
                audit.saw(name, waits=False)
        elif function in (aten.copy_.default, aten._to_copy.default):
            self._look_at_copy(name, function, args, kwargs)

    def _look_at_copy(
        self, name: str, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        if function is aten.copy_.default:
            target, source = args[0].device, args[1]
            non_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
            pinned = (args[0] if target.type == "cpu" else source).is_pinned
        else:
            source = args[0]
            target = torch.device(kwargs.get("device") or source.device)
            non_blocking = kwargs.get("non_blocking", False)
            pinned = source.is_pinned if target.type != "cpu" else lambda: False
        if target.type != source.device.type:
            self._audit.saw(
                f"{name} {source.device.type} → {target.type}", waits=not (non_blocking and pinned())
            )


def _by_mask(function: Any, args: tuple[Any, ...]) -> bool:
    """Indexing by a boolean tensor asks how many are true."""
    return function in INDEXING_OPS and any(
        isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1]
    )


def _repeats(function: Any, kwargs: Mapping[str, Any]) -> bool:
    return function in REPEATING_OPS and kwargs.get("output_size") is None
