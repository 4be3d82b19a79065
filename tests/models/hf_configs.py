"""HF configurations: those shipped in conf/model, and one small enough to write by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

MODELS = Path(__file__).parents[2] / "conf" / "model"
NAMES = ("tiny_v32", "tiny_glm", "v32", "glm52")


def shipped(name: str) -> dict[str, Any]:
    """The whole YAML of a model."""
    return yaml.safe_load((MODELS / f"{name}.yaml").read_text(encoding="utf-8"))


def hf(name: str = "tiny_v32", /, **changes: Any) -> dict[str, Any]:
    """A shipped hf_config with changes; None removes a key."""
    merged = shipped(name)["hf_config"] | changes
    return {key: value for key, value in merged.items() if value is not None}
