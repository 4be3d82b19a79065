"""The trained model as a plain HF folder, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from paths.models.checkpoint import SINGLE_FILE, Checkpoint
from paths.models.config import ModelConfig
from paths.models.train.parameters import EXPERTS_IN, EXPERTS_OUT, ROUTER_BIAS, Parameters, shapes


def save_model(folder: Path, hf: Mapping[str, Any], parameters: Parameters, *, dtype: torch.dtype) -> None:
    """`config.json`, `generation_config.json` and `model.safetensors`; the router's bias stays float32."""
    folder.mkdir(parents=True, exist_ok=True)
    config = ModelConfig.from_hf(hf)
    layers = config.num_hidden_layers
    kinds = ["sparse" if config.is_moe(layer) else "dense" for layer in range(layers)]
    stored = dict(hf) | {
        "mlp_layer_types": kinds,
        "num_nextn_predict_layers": 1,
        "dtype": str(dtype).removeprefix("torch."),
    }
    _write(folder / "config.json", stored)
    tokens = {key: hf[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write(folder / "generation_config.json", tokens | {"do_sample": False})
    tensors = {
        name: values.detach().to(torch.float32 if name.endswith(ROUTER_BIAS) else dtype).contiguous()
        for name, values in _unstacked(parameters).items()
    }
    save_file(tensors, folder / SINGLE_FILE, metadata={"format": "pt"})


def load_model(folder: Path, config: ModelConfig) -> Parameters:
    """float32 parameters of a folder that `save_model` wrote. Raises UserError if a tensor does not fit."""
    checkpoint = Checkpoint(folder)
    parameters: Parameters = {}
    width, dim = config.moe_intermediate_size, config.hidden_size
    for name, shape in shapes(config).items():
        if name.endswith(EXPERTS_IN):
            stem = name.removesuffix(".gate_up_proj")
            parameters[name] = torch.stack(
                [
                    torch.cat(
                        [checkpoint.get(f"{stem}.{e}.{half}_proj.weight", (width, dim)) for half in HALVES]
                    )
                    for e in range(shape[0])
                ]
            ).float()
        elif name.endswith(EXPERTS_OUT):
            stem = name.removesuffix(".down_proj")
            found = [checkpoint.get(f"{stem}.{e}.down_proj.weight", shape[1:]) for e in range(shape[0])]
            parameters[name] = torch.stack(found).float()
        else:
            parameters[name] = checkpoint.get(name, shape).float()
    return parameters


HALVES = ("gate", "up")


def _unstacked(parameters: Parameters) -> dict[str, Tensor]:
    """One tensor per expert and projection, as HF folders have them."""
    found: dict[str, Tensor] = {}
    for name, values in parameters.items():
        if name.endswith(EXPERTS_IN):
            stem = name.removesuffix(".gate_up_proj")
            for e, both in enumerate(values):
                for half, rows in zip(HALVES, both.chunk(2), strict=True):
                    found[f"{stem}.{e}.{half}_proj.weight"] = rows
        elif name.endswith(EXPERTS_OUT):
            stem = name.removesuffix(".down_proj")
            found |= {f"{stem}.{e}.down_proj.weight": rows for e, rows in enumerate(values)}
        else:
            found[name] = values
    return found


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
