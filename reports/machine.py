"""A machine in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.tables import bytes_text, plain


def machine_sentence(environment: Mapping[str, Any]) -> str:
    """The machine in a few words, from whatever of it was recorded."""
    gpu = environment.get("gpu")
    parts = [
        environment.get("cpu"),
        f"{environment['cores']} cores" if environment.get("cores") else None,
        gpu.get("name") if isinstance(gpu, Mapping) else gpu,
        bytes_text(environment["memory_bytes"]) if environment.get("memory_bytes") else None,
    ]
    return " · ".join(plain(part) for part in parts if part is not None) or "machine not recorded"
