"""From logits to tokens: the inputs of the op `sample` for one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from paths.kernels.sample import torch_impl


@dataclass(frozen=True, kw_only=True)
class SamplingInputs:
    """One row per logits row; where `rows` is given, the parameters of row n stand at rows[n]."""

    temperature: Tensor  # [N] float32, 0 is greedy
    top_k: Tensor  # [N] int32, 0 is off
    top_p: Tensor  # [N] float32, 1 is off
    seeds: Tensor  # [N] int64
    positions: Tensor  # [N] int64: position that the new token will have
    all_greedy: bool  # known on the host, so that the common case costs one argmax
    rows: Tensor | None = None  # [N] int32


def sample(logits: Tensor, inputs: SamplingInputs, op: Callable[..., Tensor] = torch_impl.sample) -> Tensor:
    """Token ids [N] int64 from float32 logits [N, V]. Ties go to the lowest id; NaN never wins."""
    return op(
        logits,
        temperature=inputs.temperature,
        top_k=inputs.top_k,
        top_p=inputs.top_p,
        seeds=inputs.seeds,
        positions=inputs.positions,
        all_greedy=inputs.all_greedy,
        rows=inputs.rows,
    )
