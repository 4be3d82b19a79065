"""torch.compile in pieces: Dynamo captures once, Inductor compiles what stands between opaque split ops."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, fx
from torch._guards import TracingContext, tracing
from torch._inductor.compile_fx import compile_fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.passes.split_module import split_module

from paths.graphs.breakable import running_capture
from paths.graphs.generated import GeneratedCode, catch_generated

Runnable = Callable[..., Any]

INDUCTOR_OPTIONS: dict[str, Any] = {
    "max_autotune": False,
    "size_asserts": False,  # checked once by Dynamo's guards
}


class PiecewiseCompiler:
    """Wraps a method of tensors whose first dimensions are numbers of rows.

    For each choice of tensors that have more than one row, the first call compiles a graph with those
    dimensions dynamic; further compilations would be counted. Numbers that are equal in such a call are
    taken to be always equal. `pieces` is the number of compiled
    pieces of a graph, one more than the number of runs of split ops; `pieces_run` counts their executions.
    """

    def __init__(self, method: Callable[..., Tensor], *, split_ops: Collection[Any]) -> None:
        self.compiles = 0
        self.pieces = 0
        self.pieces_run = 0
        self._split_ops = frozenset(split_ops)
        self._known: set[tuple[bool, ...]] = set()  # which tensors had more than one row
        self._binding: list[Callable[[], Any]] | None = None
        self._compiled = torch.compile(
            _with_own_code(method),
            backend=self._compile_graph,
            fullgraph=True,
            dynamic=False,
            options={"guard_filter_fn": _only_input_guards},
        )

    def __call__(self, *tensors: Tensor) -> Tensor:
        several = tuple(tensor.shape[0] > 1 for tensor in tensors)
        if several not in self._known:
            for tensor in itertools.compress(tensors, several):
                torch._dynamo.mark_dynamic(tensor, 0)
            self._known.add(several)
        return self._compiled(*tensors)

    def bind(self, *tensors: Tensor) -> Callable[[], Tensor]:
        """The compiled method over these very tensors, without Dynamo, which cannot run under a capture.

        Runs it once. In a capture each piece is one instruction and each run of split ops a break.
        """
        self._binding = []
        try:
            self(*tensors)
            (stitched,) = self._binding
        finally:
            self._binding = None
        return lambda: stitched()[0]

    def _compile_graph(self, graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Runnable:
        self.compiles += 1
        split, piece_names = split_graph(graph, self._split_ops)
        self.pieces = len(piece_names)
        fake_inputs = [node.meta["example_value"] for node in graph.graph.nodes if node.op == "placeholder"]
        fake_mode = next(value.fake_mode for value in fake_inputs if isinstance(value, FakeTensor))
        _PieceCompiler(split, piece_names, fake_mode, count=self._count_pieces).run(*fake_inputs)

        def run(*args: Any) -> Any:
            if self._binding is not None:
                self._binding.append(partial(split.forward, *args))
            return split.forward(*args)

        return run

    def _count_pieces(self, times: int) -> None:
        self.pieces_run += times


def split_graph(graph: fx.GraphModule, split_ops: Collection[Any]) -> tuple[fx.GraphModule, list[str]]:
    """Cut a captured graph at the split ops; neighbouring split ops stay together.

    Returns the stitched module and the names of its submodules that hold no split op, in order. Raises
    RuntimeError where what split ops return is read behind the next ones: its buffer is theirs by then.
    """
    part_of: dict[fx.Node, int] = {}
    part, in_split, pieces = 0, False, {0}
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        splits = node.op == "call_function" and node.target in split_ops
        if splits != in_split:
            part, in_split = part + 1, splits
            if not splits:
                pieces.add(part)
        part_of[node] = part
    late = [
        node.name
        for node, part in part_of.items()
        if part not in pieces and any(part_of.get(user, part) > part + 1 for user in node.users)
    ]
    if late:
        raise RuntimeError(f"{', '.join(late)}: read behind the next split ops, which write the same buffer")
    split = split_module(graph, graph, lambda node: part_of[node], keep_original_order=True)
    names = [f"submod_{number}" for number in sorted(pieces)]
    return split, [name for name in names if hasattr(split, name)]


class _PieceCompiler(fx.Interpreter):
    """Runs the stitched module on fake tensors and replaces each piece by its compiled form."""

    def __init__(
        self,
        module: fx.GraphModule,
        piece_names: Sequence[str],
        fake_mode: FakeTensorMode,
        *,
        count: Callable[[int], None],
    ) -> None:
        super().__init__(module)
        self._count = count
        self._fake_mode = fake_mode
        self._piece_names = frozenset(piece_names)

    def call_module(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        piece = getattr(self.module, target)
        # constants made inside a piece become fake as well
        with self._fake_mode:
            result = super().call_module(target, args, kwargs)
        # callables in the instance shadow the submodules and spare the module's call machinery
        if target in self._piece_names:
            # a context of its own: what Inductor learns of one piece must not leak into the next
            with tracing(TracingContext(self._fake_mode)), catch_generated() as code:
                compiled: Any = compile_fx(piece, list(args), config_patches=INDUCTOR_OPTIONS)
            only = code[0] if len(code) == 1 else None
            self.module.__dict__[target] = CompiledPiece(compiled, self._count, only)
        else:
            self.module.__dict__[target] = SplitOps(piece.forward)
        return result


class CompiledPiece:
    """Inductor's code: a captured segment holds its calls where these are known, else it is one instruction.

    code: what it consists of, None where that is not known. count: of runs, given how many there were.
    """

    def __init__(self, compiled: Runnable, count: Callable[[int], None], code: GeneratedCode | None) -> None:
        self._compiled = compiled
        self._count = count
        self._code = code

    def __call__(self, *args: Any) -> Any:
        capture = running_capture()
        if capture is None:
            return self._run(*args)
        if self._code is not None:
            return capture.recording.generated(self._code, self._run, args, count=self._count)
        return capture.call(self._run, args, {})

    def _run(self, *args: Any) -> Any:
        self._count(1)
        return self._compiled(*args)


class SplitOps:
    """A run of split ops is a break of a capture; what it returns goes into buffers that stay."""

    def __init__(self, forward: Runnable) -> None:
        self._forward = forward

    def __call__(self, *args: Any) -> Any:
        capture = running_capture()
        if capture is None or capture.inline:
            return self._forward(*args)
        part = _BufferedPart(self._forward, capture.recording.keep)
        capture.at_break(part, args, {})
        return part.result


class _BufferedPart:
    """Gets its buffers at the capture, of all rows; later runs fill as many as are live."""

    def __init__(self, forward: Runnable, keep: Callable[[int, Tensor], Tensor]) -> None:
        self._forward = forward
        self._keep: Callable[[int, Tensor], Tensor] | None = keep
        self.result: Any = None  # a tensor or a sequence of them

    def __call__(self, *args: Any) -> None:
        result = self._forward(*args)
        single = isinstance(result, Tensor)
        if self._keep is not None:
            keep, self._keep = self._keep, None  # a recording ends with its capture
            self.result = keep(0, result) if single else [keep(*item) for item in enumerate(result or ())]
            return
        for buffer, rows in zip(
            (self.result,) if single else self.result, (result,) if single else result, strict=True
        ):
            buffer[: rows.shape[0]].copy_(rows)


def _only_input_guards(guards: Sequence[Any]) -> list[bool]:
    """Keep the guards on shapes and on the arguments; weights and configuration never change."""
    return [
        guard.guard_type == "SHAPE_ENV" or (guard.guard_type == "TENSOR_MATCH" and guard.name.isidentifier())
        for guard in guards
    ]


def _with_own_code(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same bound method over a code object of its own.

    Dynamo keeps compiled graphs per code object. Without guards on the model, another instance of the class
    would be given this one's graphs.
    """
    function = method.__func__  # type: ignore[attr-defined]
    code = function.__code__.replace()
    own = FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    return MethodType(own, method.__self__)  # type: ignore[attr-defined]
