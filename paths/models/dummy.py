"""Seeded random weights under HF names: finite, of realistic scale, with balanced routing.

Every tensor has a generator of its own, seeded by the run's seed and the tensor's name, so that the values
depend neither on the order of loading nor on the number of threads.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch
from torch import Tensor

from paths.models.config import ModelConfig

ROUTER_BIAS_STD = 0.01  # enough to be seen in selection, too small to unbalance it
NORM_STD = 0.1
RESIDUAL_WRITERS = ("o_proj.weight", "down_proj.weight")
MAIN_EMBEDDING = "model.embed_tokens.weight"
COPIES = ("embed_tokens.weight", "shared_head.head.weight")  # what an MTP layer may have of its own


class DummyWeights:
    """A source of tensors like a checkpoint; holds every name but an MTP layer's copies of main tensors."""

    def __init__(self, config: ModelConfig, *, seed: int = 0) -> None:
        self.seed = seed
        # keeps the residual stream's variance near 1 however deep the model is
        self.residual_gain = 1.0 / math.sqrt(2 * config.num_hidden_layers)

    def __contains__(self, name: str) -> bool:
        return name == MAIN_EMBEDDING or not name.endswith(COPIES)

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """float32 values with the scale that the tensor's role asks for."""
        digest = hashlib.sha256(f"{self.seed}/{name}".encode()).digest()
        rng = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:8], "little")))
        values = torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))
        if name.endswith("e_score_correction_bias"):
            return values.mul_(ROUTER_BIAS_STD)
        if name.endswith("norm.bias"):
            return values.mul_(NORM_STD)
        if name.endswith("norm.weight"):
            return values.mul_(NORM_STD).add_(1.0)
        if name.endswith("mlp.gate.weight"):
            # rows of equal length: no expert is favoured for the size of its row
            return torch.nn.functional.normalize(values, dim=-1)
        if name.endswith("embed_tokens.weight"):
            return values
        gain = self.residual_gain if name.endswith(RESIDUAL_WRITERS) else 1.0
        return values.mul_(gain / math.sqrt(shape[-1]))
