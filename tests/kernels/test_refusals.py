"""Every tensor that a Triton launcher takes: another dtype, rank or stride is refused before any launch."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields, is_dataclass, replace

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from paths.kernels.describe import INNER_OPS
from paths.kernels.launching import tracing
from paths.kernels.tools.catalog import find_ops

MUTATIONS = {
    "dtype": lambda tensor: tensor.to(torch.int16),
    "shape": lambda tensor: tensor[None],
    "strides": lambda tensor: torch.stack([tensor, tensor], dim=-1)[..., 0],
}
COUNTERS = ("total",)  # integers that point nowhere
OPS = {op.name: op for op in find_ops() if "triton" in op.implementations}


class Watched:
    """Stands for a dataclass and notes which of its fields are read."""

    def __init__(self, inner):
        self._inner, self.read = inner, set()

    def __getattr__(self, name):
        self.read.add(name)
        return getattr(self._inner, name)


def calls_of(op):
    """Name, launcher and arguments: of each group of check cases the first one that launches anything."""
    seen = set()
    for case in op.check_cases():
        if case.slow or case.group in seen:
            continue
        call = case.make(torch.Generator().manual_seed(0), torch.device("cpu"))
        launcher = op.function("triton", call.function)
        arguments = inspect.signature(launcher).bind(*call.args, **call.kwargs).arguments
        watched = {name: Watched(it) if is_dataclass(it) else it for name, it in arguments.items()}
        with tracing() as launches:
            launcher(**watched)
        if launches:
            seen.add(case.group)
            yield call.function or op.name, launcher, arguments, watched


def tensors_of(arguments, watched):
    """Every tensor that the launcher reads: its name, and the arguments with another one in its place."""
    for name, value in arguments.items():
        if isinstance(value, Tensor):
            yield name, value, lambda other, name=name: arguments | {name: other}
        elif is_dataclass(value):
            for field in (field.name for field in fields(value)):
                tensor = getattr(value, field)
                if isinstance(tensor, Tensor) and field in watched[name].read:

                    def put(other, name=name, value=value, field=field):
                        return arguments | {name: replace(value, **{field: other})}

                    yield field, tensor, put


def outcome(launcher, arguments):
    """What the launcher says to wrong arguments."""
    with tracing() as launches:
        try:
            launcher(**arguments)
        except ValueError as error:
            return f"launched, then {error}" if launches else str(error)
        except (TypeError, IndexError, RuntimeError, KeyError, AttributeError) as error:
            return f"{type(error).__name__}: {error}"
    return "accepted"


@pytest.mark.parametrize("name", OPS)
def test_wrong_tensors_are_refused(name):
    """ValueError with the op, the argument, what came and what is allowed."""
    tried, missed = 0, []
    for function, launcher, arguments, watched in calls_of(OPS[name]):
        for argument, tensor, put in tensors_of(arguments, watched):
            for what, mutate in MUTATIONS.items():
                if what == "strides" and (tensor.ndim == 0 or tensor.shape[-1] < 2):
                    continue
                tried += 1
                said = outcome(launcher, put(mutate(tensor)))
                if not re.match(rf"(?:{function}|{name}): .*\b{argument}\b.*{what}.*allowed", said):
                    missed.append(f"{function}, {what} of {argument}: {said}")
    assert tried and not missed, "\n".join(missed)


@pytest.mark.parametrize("name", sorted(set(OPS) - set(INNER_OPS)))
def test_an_op_that_takes_integers_has_an_index_check(name):
    """Under debug.checks=true; inner kernels get indices from an op that has looked at them."""
    op = OPS[name]
    integers = [
        argument
        for _, _, arguments, watched in calls_of(op)
        for argument, tensor, _ in tensors_of(arguments, watched)
        if tensor.dtype in (torch.int32, torch.int64) and argument not in COUNTERS
    ]
    assert not integers or (op.folder / "checks.py").is_file(), f"{name}: nobody checks {set(integers)}"
