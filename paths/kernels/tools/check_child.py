"""The process that checks ops: a request names one, the answer is its rows.

Triton decides between interpreting and compiling when it is imported, so the mode comes with the process.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from paths.kernels.tools.catalog import find_ops
from paths.kernels.tools.check import Row, check_op
from paths.kernels.tools.child_pool import Died, answer_all, ask_all


@dataclass(frozen=True, kw_only=True)
class CheckRequest:
    """What to check of every op."""

    implementations: Sequence[str]
    slow: bool
    seed: int
    device: str


def check_all(
    ops: Sequence[str], request: CheckRequest, *, jobs: int, done: Callable[[str], None] = lambda op: None
) -> list[Row]:
    """Rows of all ops, in their order, from child processes."""
    answers = ask_all(
        "paths.kernels.tools.check_child",
        [{"op": op, **asdict(request)} for op in ops],
        env={"TRITON_INTERPRET": "1" if request.device == "cpu" else "0"},
        jobs=jobs,
        done=lambda asked: done(asked["op"]),
    )
    return [row for op, answer in zip(ops, answers, strict=True) for row in _rows(op, answer)]


def _rows(op: str, answer: Any) -> list[Row]:
    if isinstance(answer, Died):
        return [Row(op, "-", "", state="fail", note=str(answer))]
    return [Row(**fields) for fields in answer]


def _answer(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    name = request["op"]
    try:
        rows = check_op(
            find_ops([name])[0],
            device=torch.device(request["device"]),
            seed=request["seed"],
            implementations=request["implementations"],
            slow=request["slow"],
        )
    except Exception as error:  # noqa: BLE001  # a broken cases.py fails its op, not the others
        traceback.print_exc()
        rows = [Row(name, "-", "", state="fail", note=f"{type(error).__name__}: {error}"[:300])]
    return [asdict(row) for row in rows]


if __name__ == "__main__":
    torch.set_num_threads(1)
    answer_all(_answer)
