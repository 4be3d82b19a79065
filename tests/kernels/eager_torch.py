"""Which torch operators a V2 step of the fused model runs beside its Triton kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import GridExecutor

from paths.api import EngineConfig, ModelSource
from paths.built_in import BuiltInPath
from paths.engine.build import build_engine
from tests.engine.mock import request
from tests.models.hf_configs import hf

DENSE_GEMMS = {"linear", "mm", "bmm"}
ALLOCATIONS = {"empty", "new_empty", "lift_fresh"}
VIEWS = {
    "slice",
    "transpose",
    "unflatten",
    "select",
    "view",
    "alias",
    "unsqueeze",
    "detach",
    "resolve_conj",
    "resolve_neg",
}
NO_OPS = {"to"}  # float32 to float32: `copy_` is what a conversion would run
ONE_COPY_IN = {"copy_"}


class Operators(TorchDispatchMode):
    """Counts operators by name, except those with which the interpreter itself works."""

    def __init__(self, interpreting: Callable[[], bool]) -> None:
        super().__init__()
        self.seen: dict[str, int] = {}
        self._interpreting = interpreting

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._interpreting():
            name = func.overloadpacket.__name__
            self.seen[name] = self.seen.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


def operators_of_steps(steps: int) -> dict[str, int]:
    """Of decode steps after a prefill; one request is greedy, one sampled with a minimum of tokens."""
    depth = 0
    run = GridExecutor.__call__

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        depth += 1
        try:
            return run(self, *args, **kwargs)
        finally:
            depth -= 1

    config = EngineConfig(
        path="built_in",
        impl="paths.built_in:BuiltInPath",
        model=ModelSource(
            name="tiny",
            hf_config=hf(
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=4,
                index_topk=32,
                vocab_size=512,
            ),
            checkpoint="dummy",
        ),
        options={"model": "dsa", "runner": "V2", "graphs": "none"},
        dtype="float32",
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_model_len=128,
        kv_pages=14,
    )
    recipe = dataclasses.replace(BuiltInPath().recipe(config), kernels="triton")
    engine = build_engine(config, recipe)
    engine.add(request(0, list(range(5, 50)), max_tokens=steps + 1))
    engine.add(request(1, [5, 6], max_tokens=steps + 1, min_tokens=3, temperature=1.0, top_k=5))
    engine.step()
    operators = Operators(lambda: depth > 0)
    GridExecutor.__call__ = counted
    try:
        with operators:
            for _ in range(steps):
                assert len(engine.step()) == 2
    finally:
        GridExecutor.__call__ = run
    return operators.seen


def assert_only_dense_gemms(steps: int = 3) -> None:
    seen = operators_of_steps(steps)
    others = set(seen) - DENSE_GEMMS - ALLOCATIONS - VIEWS - NO_OPS - ONE_COPY_IN
    assert not others, f"torch operators in a step: {sorted(others)}"
    assert seen["copy_"] == steps, "one copy of the host's buffer a step, and no other"
    assert seen["linear"] >= 2 * steps
