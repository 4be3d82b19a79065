"""Muon for the matrices between embedding and head, Adam for everything else; all state in float32.

Muon (Jordan et al., 2024): the update of a matrix is its momentum, orthogonalised by Newton-Schulz steps.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from paths.models.train.parameters import EMBED, HEAD, ROUTER_BIAS, Parameters

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
ADAM_BY_NAME = (EMBED, HEAD, "mlp.gate.weight", "weights_proj.weight")


@dataclass(frozen=True, kw_only=True)
class OptimizerOptions:
    muon_lr: float = 0.02
    adam_lr: float = 0.003
    embed_lr: float = 0.01
    indexer_factor: float = 4.0  # on the rates of the indexers, which begin to learn when the others end
    momentum: float = 0.95
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.01  # of matrices, relative to the learning rate
    clip: float = 1.0


class Optimizer:
    """Changes parameters in place from gradients by name; what has no gradient stays as it is."""

    def __init__(self, options: OptimizerOptions) -> None:
        self.options = options
        self.state: dict[str, dict[str, Tensor]] = {}
        self.steps: dict[str, int] = {}

    def step(self, parameters: Parameters, gradients: Parameters, *, scale: float) -> float:
        """One update at `scale` × the learning rates. Returns the gradients' norm before clipping."""
        norm = float(torch.stack([g.float().pow(2).sum() for g in gradients.values()]).sum().sqrt())
        if norm != norm or norm == float("inf"):
            return norm  # a step that overflowed teaches nothing
        shrink = min(1.0, self.options.clip / max(norm, 1e-12))
        alike: dict[tuple[float, tuple[int, ...]], list[str]] = defaultdict(list)
        for name, gradient in gradients.items():
            factor = scale * (self.options.indexer_factor if ".indexer." in name else 1.0)
            if is_muon(name, gradient):
                alike[factor, tuple(gradient.shape)].append(name)
            else:
                self._adam(name, parameters[name], gradient.float() * shrink, factor)
        for (factor, _), names in alike.items():
            self._muon(names, parameters, gradients, shrink=shrink, scale=factor)
        return norm

    def _muon(
        self, names: list[str], parameters: Parameters, gradients: Parameters, *, shrink: float, scale: float
    ) -> None:
        """Matrices of one shape and rate together."""
        updates = []
        for name in names:
            gradient = gradients[name].float() * shrink
            buffer = self._buffers(name, gradient, "momentum")["momentum"]
            buffer.lerp_(gradient, 1 - self.options.momentum)
            updates.append(gradient.lerp(buffer, self.options.momentum))
        stacked = torch.stack(updates)
        rows, columns = stacked.shape[-2:]
        orthogonal = orthogonalised(stacked.flatten(0, -3)).view_as(stacked)
        lr = self.options.muon_lr * scale
        gain = max(1.0, rows / columns) ** 0.5
        for name, update in zip(names, orthogonal, strict=True):
            parameters[name].mul_(1 - lr * self.options.weight_decay).add_(update.float(), alpha=-lr * gain)

    def _adam(self, name: str, parameter: Tensor, gradient: Tensor, scale: float) -> None:
        first, second = self.options.betas
        buffers = self._buffers(name, gradient, "mean", "square")
        self.steps[name] = self.steps.get(name, 0) + 1
        mean = buffers["mean"].lerp_(gradient, 1 - first)
        square = buffers["square"].lerp_(gradient.square(), 1 - second)
        count = self.steps[name]
        lr = (self.options.embed_lr if name == EMBED else self.options.adam_lr) * scale
        corrected = (square / (1 - second**count)).sqrt_().add_(1e-8)
        parameter.addcdiv_(mean / (1 - first**count), corrected, value=-lr)

    def _buffers(self, name: str, like: Tensor, *kinds: str) -> dict[str, Tensor]:
        return self.state.setdefault(name, {kind: torch.zeros_like(like) for kind in kinds})


def is_muon(name: str, values: Tensor) -> bool:
    """Whether Muon changes it; stacked experts are matrices too."""
    return values.ndim >= 2 and not name.endswith((*ADAM_BY_NAME, ROUTER_BIAS))


def orthogonalised(matrices: Tensor, *, iterations: int = 5) -> Tensor:
    """Approximately U Vᵀ of each of `[M, rows, columns]`, in bf16."""
    a, b, c = NEWTON_SCHULZ
    x = matrices.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.float().norm(dim=(-2, -1), keepdim=True) + 1e-7).bfloat16()
    for _ in range(iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x
