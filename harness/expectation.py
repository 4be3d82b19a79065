"""Requested against effective: did the engine prove that it ran what its label says? Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.config import Expectation, PathSection
from harness.counters import replayed_steps
from paths.api import Effective, EngineConfig
from paths.kernels.cache_bytes import (
    cache_bytes_per_token,
    resolve_hadamard,
    resolve_index_dtype,
    resolve_kv_dtype,
)
from paths.models.config import ModelConfig

NOT_APPLICABLE = "none"  # an engine without weights or caches names its dtypes so; it has no threads either


def mismatches(
    path: PathSection,
    config: EngineConfig,
    effective: Effective,
    *,
    measured: bool,
    counted: Mapping[str, Any] | None = None,
) -> list[str]:
    """Every contradiction in words; none: the path ran as labelled.

    Before a measurement (`measured` False) an expected op need not have been called yet; after it, it must.
    counted: the engine's counters over the measured window, as a record carries them; None: not known, which
    contradicts an expectation about replays.
    """
    found = [] if effective.path == config.path else [f"path {effective.path!r}, requested {config.path!r}"]
    found += _setting_mismatches(config, effective)
    device = effective.device.partition(":")[0]
    if device != config.device:
        found.append(f"device {device!r}, requested {config.device!r}")
    for section in ("any", config.device):
        expected = path.expect.get(section)  # type: ignore[call-overload]
        if expected is not None:
            found += _names(expected, effective)
            found += _graphs(expected, effective)
            found += _kernels(expected, effective, measured=measured)
            found += _cache_bytes(expected, config, effective)
            if measured and expected.min_replay_frac is not None:
                found += _replays(
                    expected.min_replay_frac, counted, uniform_only=only_uniform_replays(path, config.device)
                )
    return list(dict.fromkeys(found))


def _setting_mismatches(config: EngineConfig, effective: Effective) -> list[str]:
    """Settings that the engine did not apply; `auto` counts as what it stands for."""
    asked = {name: getattr(config, name) for name in ("dtype", "kv_dtype", "index_dtype")}
    kv_dtype, index_dtype = _cache_dtypes(config)
    wanted: dict[str, object] = {"dtype": config.dtype, "kv_dtype": kv_dtype, "index_dtype": index_dtype}
    if effective.index_dtype != NOT_APPLICABLE:
        asked["hadamard"] = "null" if config.hadamard is None else config.hadamard
        wanted["hadamard"] = resolve_hadamard(config.hadamard, index_dtype=index_dtype)
    if effective.dtype != NOT_APPLICABLE:
        asked["threads"] = wanted["threads"] = config.threads
    found = _speculation(config, effective)
    for name, value in wanted.items():
        ran = getattr(effective, name)
        if ran not in (value, NOT_APPLICABLE):
            resolved = "" if asked[name] == value else f" (meaning {value!r})"
            found.append(f"{name} {ran!r}, requested {asked[name]!r}{resolved}")
    return found


def _speculation(config: EngineConfig, effective: Effective) -> list[str]:
    """Drafts of one verification, and forced acceptance: asked for and acknowledged, or neither."""
    return [
        f"{name} {ran}, requested {asked}"
        for name in ("mtp", "mtp_forced_al")
        if (ran := getattr(effective, name)) != (asked := getattr(config, name))
    ]


def _cache_dtypes(config: EngineConfig) -> tuple[str, str]:
    """Of the main and of the index cache, `auto` resolved."""
    kv_dtype = resolve_kv_dtype(config.kv_dtype, config.dtype)
    return kv_dtype, resolve_index_dtype(config.index_dtype, kv_dtype=kv_dtype, dtype=config.dtype)


def _names(expected: Expectation, effective: Effective) -> Iterator[str]:
    for name in ("model_class", "model_module", "runner", "compile_mode", "kv_dtype"):
        wanted, ran = getattr(expected, name), getattr(effective, name)
        if wanted is not None and ran != wanted:
            yield f"{name} {ran!r}, expected {wanted!r}"


def _graphs(expected: Expectation, effective: Effective) -> Iterator[str]:
    """What was captured, and the modes of the steps so far."""
    graphs = effective.graphs
    if expected.graphs_min is not None and graphs < expected.graphs_min:
        yield f"{graphs} graphs were captured, expected {expected.graphs_min} or more"
    if expected.graphs_max is not None and graphs > expected.graphs_max:
        yield f"{graphs} graphs were captured, expected {expected.graphs_max} or fewer"
    wanted, ran = expected.breaks_per_layer, effective.breaks_per_layer
    if wanted is not None and ran != wanted:
        said = "no piecewise graph was captured" if ran is None else f"breaks_per_layer {ran:g}"
        yield f"{said}, expected {wanted:g} breaks per layer"
    if expected.graph_modes is not None:
        for mode, steps in effective.graph_modes.items():
            if steps and mode not in expected.graph_modes:
                yield f"{steps} steps ran in graph mode {mode}, expected {' or '.join(expected.graph_modes)}"
    drafts = effective.draft_modes
    # behind a decode step in a FULL graph stand drafts of one shape; PIECEWISE ones stand behind prompts
    full_steps, full_drafts = effective.graph_modes.get("FULL"), drafts.get("FULL")
    if expected.min_replay_frac is not None and full_steps and drafts and not full_drafts:
        yield f"none of {sum(drafts.values())} forward passes of drafts replayed a FULL graph"


def only_uniform_replays(path: PathSection, device: str) -> bool:
    """Whether the path may run steps as FULL but not as PIECEWISE: it has no graph for mixed steps."""
    sections = (path.expect.get("any"), path.expect.get(device))  # type: ignore[call-overload]
    modes = [section.graph_modes for section in sections if section is not None and section.graph_modes]
    return any("FULL" in allowed and "PIECEWISE" not in allowed for allowed in modes)


def _replays(fraction: float, counted: Mapping[str, Any] | None, *, uniform_only: bool) -> Iterator[str]:
    """Steps of the measured window that replayed a graph, by those that one could have run."""
    if counted is None:
        yield f"replays not known: no engine counters of the load, expected a fraction of {fraction:g}"
        return
    misses = counted["graph_misses"]
    replayed, eligible = replayed_steps(counted, uniform_only=uniform_only)
    if replayed < fraction * eligible:
        yield (
            f"{replayed} of {eligible} measured steps replayed a graph,"
            f" expected a fraction of {fraction:g}{_reasons(misses)}"
        )


def _reasons(misses: Mapping[str, int]) -> str:
    """Why steps ran below their mode, the most frequent reason first."""
    said = sorted((-number, reason) for reason, number in misses.items() if number)
    return f" ({', '.join(f'{-number} × {reason}' for number, reason in said)})" if said else ""


def _kernels(expected: Expectation, effective: Effective, *, measured: bool) -> Iterator[str]:
    for op, allowed in expected.kernels.items():
        calls = {impl for impl, number in effective.kernels.get(op, {}).items() if number}
        if measured and not calls:
            yield f"kernel {op} was never called"
        for impl in sorted(calls - set(allowed)):
            yield f"kernel {op} ran {impl!r}, expected {' or '.join(allowed)}"


def _cache_bytes(expected: Expectation, config: EngineConfig, effective: Effective) -> Iterator[str]:
    if expected.kv_bytes_per_token is None:
        return
    kv_dtype, index_dtype = _cache_dtypes(config)
    model = ModelConfig.from_hf(config.model.hf_config)
    wanted = cache_bytes_per_token(
        model, kv_dtype=kv_dtype, index_dtype=index_dtype, mtp_layers=model.mtp_layers(config.mtp)
    )
    if effective.kv_bytes_per_token != wanted:
        yield (
            f"kv_bytes_per_token {effective.kv_bytes_per_token}, expected {wanted}"
            f" ({kv_dtype} cache, {index_dtype} index cache)"
        )
