"""Requested against effective: did the engine prove that it ran what its label says? Pure."""

from __future__ import annotations

from harness.config import Expectation, PathSection
from paths.api import Effective, EngineConfig
from paths.kernels.cache_bytes import resolve_hadamard, resolve_index_dtype, resolve_kv_dtype

NOT_APPLICABLE = "none"  # an engine without weights or caches names its dtypes so; it has no threads either


def mismatches(path: PathSection, config: EngineConfig, effective: Effective, *, measured: bool) -> list[str]:
    """Every contradiction in words; none: the path ran as labelled.

    Before a measurement (`measured` False) an expected op need not have been called yet; after it, it must.
    """
    found = [] if effective.path == config.path else [f"path {effective.path!r}, requested {config.path!r}"]
    found += _setting_mismatches(config, effective)
    device = effective.device.partition(":")[0]
    if device != config.device:
        found.append(f"device {device!r}, requested {config.device!r}")
    for section in ("any", config.device):
        expected = path.expect.get(section)  # type: ignore[call-overload]
        if expected is not None:
            found += _unexpected(expected, effective, measured=measured)
    return found


def _setting_mismatches(config: EngineConfig, effective: Effective) -> list[str]:
    """Settings that the engine did not apply; `auto` counts as what it stands for."""
    asked = {name: getattr(config, name) for name in ("dtype", "kv_dtype", "index_dtype")}
    kv_dtype = resolve_kv_dtype(config.kv_dtype, config.dtype)
    index_dtype = resolve_index_dtype(config.index_dtype, kv_dtype=kv_dtype, dtype=config.dtype)
    wanted: dict[str, object] = {"dtype": config.dtype, "kv_dtype": kv_dtype, "index_dtype": index_dtype}
    if effective.index_dtype != NOT_APPLICABLE:
        asked["hadamard"] = "null" if config.hadamard is None else config.hadamard
        wanted["hadamard"] = resolve_hadamard(config.hadamard, index_dtype=index_dtype)
    if effective.dtype != NOT_APPLICABLE:
        asked["threads"] = wanted["threads"] = config.threads
    found = []
    for name, value in wanted.items():
        ran = getattr(effective, name)
        if ran not in (value, NOT_APPLICABLE):
            resolved = "" if asked[name] == value else f" (meaning {value!r})"
            found.append(f"{name} {ran!r}, requested {asked[name]!r}{resolved}")
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
