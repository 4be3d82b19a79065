"""The trained model that is shipped as tiny_v32, for tests of what only a trained model shows."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import harness
import paths

FOLDER = Path(paths.__path__[0]) / "models" / "checkpoints" / "tiny_v32"
DATA = Path(harness.__path__[0]) / "accuracy" / "data"


@cache
def held_out() -> list[dict[str, Any]]:
    """Questions that the model was not trained on."""
    return _lines("arith_gsm_test.jsonl")


def prompts(count: int, *, shots: int) -> list[str]:
    """Of the first `count` held-out problems, each behind other worked examples."""
    examples = _lines("arith_gsm_train.jsonl")
    return [
        "".join(
            f"Question: {examples[at]['question']}\nAnswer: {examples[at]['answer']}\n\n"
            for at in ((number * 7 + shot) % len(examples) for shot in range(shots))
        )
        + f"Question: {held_out()[number]['question']}\nAnswer:"
        for number in range(count)
    ]


def _lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]
