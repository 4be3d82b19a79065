"""Requested against effective: did the engine prove that it ran what its label says? Pure."""

from __future__ import annotations

from harness.config import Expectation, PathSection
from paths.api import Effective, EngineConfig

NOT_APPLICABLE = "none"  # an engine without weights or caches names its dtypes so


def mismatches(path: PathSection, config: EngineConfig, effective: Effective, *, measured: bool) -> list[str]:
    """Every contradiction in words; none: the path ran as labelled.

    Before a measurement (`measured` False) an expected op need not have been called yet; after it, it must.
    """
    found = [] if effective.path == config.path else [f"path {effective.path!r}, requested {config.path!r}"]
    found += _dtype_mismatches(config, effective)
    device = effective.device.partition(":")[0]
    if device != config.device:
        found.append(f"device {device!r}, requested {config.device!r}")
    for section in ("any", config.device):
        expected = path.expect.get(section)  # type: ignore[call-overload]
        if expected is not None:
            found += _unexpected(expected, effective, measured=measured)
    return found


def _dtype_mismatches(config: EngineConfig, effective: Effective) -> list[str]:
    found = []
    for name in ("dtype", "kv_dtype", "index_dtype"):
        requested, ran = getattr(config, name), getattr(effective, name)
        if ran not in (requested, NOT_APPLICABLE) and requested != "auto":
            found.append(f"{name} {ran!r}, requested {requested!r}")
    return found


def _unexpected(expected: Expectation, effective: Effective, *, measured: bool) -> list[str]:
    found = []
    for name in ("model_class", "runner", "compile_mode"):
        wanted, ran = getattr(expected, name), getattr(effective, name)
        if wanted is not None and ran != wanted:
            found.append(f"{name} {ran!r}, expected {wanted!r}")
    for op, allowed in expected.kernels.items():
        calls = {impl for impl, number in effective.kernels.get(op, {}).items() if number}
        if measured and not calls:
            found.append(f"kernel {op} was never called")
        for impl in sorted(calls - set(allowed)):
            found.append(f"kernel {op} ran {impl!r}, expected {' or '.join(allowed)}")
    return found
