"""The device that an engine got, in the words that kernels are described with."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from paths.api import Platform


def platform_of(device: torch.device) -> Platform:
    """Kind and capability of `device`; gfx942 is ROCm with capability (9, 4)."""
    if device.type != "cuda":
        return Platform(device=device.type)
    major, minor = torch.cuda.get_device_capability(device)
    return Platform(device="rocm" if torch.version.hip else "cuda", capability=(major, minor))


def triton_interprets() -> bool:
    """Whether Triton runs kernels in Python here; decided when it is first imported."""
    if find_spec("triton") is None:
        return False
    from triton import knobs  # here: the package is optional

    return bool(knobs.runtime.interpret)
