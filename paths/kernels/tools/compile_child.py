"""The process that compiles ops: a request names op and target, the answer is its rows."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from paths.kernels.tools.catalog import find_ops
from paths.kernels.tools.child_pool import Died, answer_all, ask_all
from paths.kernels.tools.compilation import CompiledRow, compile_op


def compile_all(
    ops: Sequence[str],
    targets: Sequence[str],
    *,
    fast: bool,
    jobs: int,
    done: Callable[[str], None] = lambda text: None,
) -> list[CompiledRow]:
    """Rows of every op for every target, from child processes that share a temporary compile cache."""
    requests = [{"op": op, "target": target, "fast": fast} for op in ops for target in targets]
    with tempfile.TemporaryDirectory(prefix="triton-cache-") as cache:
        answers = ask_all(
            "paths.kernels.tools.compile_child",
            requests,
            env={"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": cache},
            jobs=jobs,
            done=lambda asked: done(f"{asked['op']} for {asked['target']}"),
        )
    return [row for asked, answer in zip(requests, answers, strict=True) for row in _rows(asked, answer)]


def _rows(asked: Mapping[str, Any], answer: Any) -> list[CompiledRow]:
    if isinstance(answer, Died):
        return [CompiledRow(asked["op"], "-", "-", asked["target"], "", fault=str(answer))]
    return [CompiledRow(**fields) for fields in answer]


def _answer(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    name, target = request["op"], request["target"]
    try:
        rows = compile_op(find_ops([name])[0], target, fast=request["fast"])
    except Exception as error:  # noqa: BLE001  # a broken compile list fails its op, not the others
        traceback.print_exc()
        fault = f"{type(error).__name__}: {error}"[:300]
        rows = [CompiledRow(name, "-", "-", target, "", fault=fault)]
    return [asdict(row) for row in rows]


if __name__ == "__main__":
    answer_all(_answer)
