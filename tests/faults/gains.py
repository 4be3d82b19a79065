"""The shipped model with the gains of its norms spread out: the same answers from other weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.shipped import FOLDER


def spread_gains(folder: Path) -> None:
    """Write the shipped model into `folder`, channels of both heads' states a quarter or fourfold.

    A norm applied twice applies its gain twice, and nothing else; the gains of a small model are all near 1.
    Powers of two leave every logit of the main model as it was, to the bit. For the MTP layer the norm of its
    input changes by a factor that is nearly the same for all tokens.
    """
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("README.md"))
    tensors = load_file(folder / "model.safetensors")
    size = len(tensors["model.norm.weight"])
    scale = torch.where(torch.rand(size, generator=torch.Generator().manual_seed(0)) < 0.5, 0.25, 4.0)
    mtp = "model.layers.4"
    for name in ("model.norm.weight", f"{mtp}.shared_head.norm.weight"):
        tensors[name] = (tensors[name] * scale).to(tensors[name].dtype)
    for name in ("lm_head.weight", f"{mtp}.shared_head.head.weight", f"{mtp}.hnorm.weight"):
        if name in tensors:
            tensors[name] = (tensors[name] / scale).to(tensors[name].dtype)
    gain = tensors[f"{mtp}.hnorm.weight"]
    tensors[f"{mtp}.hnorm.weight"] = (gain * scale.square().mean().sqrt()).to(gain.dtype)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
