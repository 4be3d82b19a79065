"""Built-in engines on a model small enough for hundreds of steps a second, and traffic for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paths.api import EngineConfig, ModelSource
from paths.built_in import BuiltInPath
from paths.engine.core import EngineCore
from tests.engine.mock import request
from tests.models.hf_configs import hf
from tests.oracle import SIZES

VOCAB = SIZES["vocab_size"]


def make_engine(
    model: str,
    runner: str,
    *,
    graphs: str = "none",
    compiled: bool = False,
    defer_output: bool = False,
    index_topk: int = 8,
    num_nextn_predict_layers: int = 1,
    **capacities: Any,
) -> EngineCore:
    """Float32, dummy weights, little room: 8 slots, 64 tokens a step."""
    sizes = {key: value for key, value in SIZES.items() if key != "rms_norm_eps"}
    engine = BuiltInPath().start(
        EngineConfig(
            path="built_in",
            impl="paths.built_in:BuiltInPath",
            model=ModelSource(
                name="small",
                hf_config=hf(
                    **sizes | {"index_topk": index_topk, "num_nextn_predict_layers": num_nextn_predict_layers}
                ),
                checkpoint="dummy",
            ),
            options={
                "model": model,
                "runner": runner,
                "graphs": graphs,
                "compiled": compiled,
                "defer_output": defer_output,
            },
            dtype="float32",
            **{
                "max_num_seqs": 8,
                "max_num_batched_tokens": 64,
                "max_model_len": 256,
                "kv_pages": 14,
                **capacities,
            },
        )
    )
    assert isinstance(engine, EngineCore)
    engine.warm_up()
    return engine


def make_prompts(count: int, *, seed: int, low: int = 1, high: int = 100) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [
        rng.integers(3, VOCAB, size=int(length)).tolist() for length in rng.integers(low, high, size=count)
    ]


def serve(
    engine: EngineCore,
    prompts: Mapping[int, Sequence[int]],
    *,
    order: Sequence[int],
    seed: int,
    max_tokens: int,
    most_at_once: int = 3,
    **params: Any,
) -> dict[int, list[int]]:
    """Tokens by prompt, sent in `order` with random pauses."""
    rng = np.random.default_rng(seed)
    waiting = list(order)
    tokens: dict[int, list[int]] = {number: [] for number in order}
    while waiting or engine.has_work():
        for _ in range(int(rng.integers(0, most_at_once + 1))):
            if waiting:
                number = waiting.pop(0)
                engine.add(request(number, prompts[number], max_tokens=max_tokens, ignore_eos=True, **params))
        if engine.has_work():
            for event in engine.step():
                tokens[event.request_id] += event.token_ids.tolist()
    return tokens
