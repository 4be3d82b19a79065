"""A tiny checkpoint with an MTP layer, and what the trainer's own forward pass makes of it."""

from __future__ import annotations

import torch
from torch import Tensor

from paths.models.config import ModelConfig
from paths.models.train.model import SELECT, Side, TrainedModel
from paths.models.train.parameters import HEAD, Parameters, computed, initial_parameters
from tests.oracle import SIZES, YARN

HF = SIZES | {
    "architectures": ["DeepseekV32ForCausalLM"],
    "model_type": "deepseek_v32",
    "num_hidden_layers": 2,
    "num_nextn_predict_layers": 1,
    "rope_parameters": YARN,
}
GLM = HF | {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "model_type": "glm_moe_dsa",
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}


def parameters(config: ModelConfig) -> Parameters:
    """Random values whose norms, biases and head are far from trivial."""
    found = initial_parameters(config, seed=5)
    generator = torch.Generator().manual_seed(7)
    for name, values in found.items():
        if "norm" in name or name.endswith("e_score_correction_bias"):
            values += 0.3 * torch.randn(values.shape, generator=generator)
    found[HEAD] *= 5
    return found


class Reference:
    """One sequence of tokens t0 … tn: states of all positions, and drafts from any length on."""

    def __init__(self, config: ModelConfig, values: Parameters) -> None:
        self._model = TrainedModel(config, max_length=256)
        self._p = computed(values, torch.float32)

    @torch.no_grad()
    def hidden(self, tokens: list[int]) -> Tensor:
        """The main model's states [n, Dm]."""
        sight = self._sight(len(tokens))
        return self._model.hidden(self._p, torch.tensor([tokens]), sight, SELECT, Side())[0]

    @torch.no_grad()
    def states(self, hidden: Tensor, following: list[int]) -> Tensor:
        """Of the MTP layer: row i from hidden[i] and following[i] = t(i + 1); [n, Dm]."""
        sight = self._sight(len(following))
        ids = torch.tensor([following])
        return self._model.mtp(self._p, hidden[None], ids, sight, SELECT, Side())[0]

    @torch.no_grad()
    def logits(self, states: Tensor) -> Tensor:
        return self._model.logits(self._p, states)

    def _sight(self, length: int):
        return self._model.sight(torch.arange(length)[None], torch.ones(1, length, dtype=torch.int64))
