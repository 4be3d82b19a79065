"""A validated configuration with every default resolved for this machine, and its identities."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.accuracy.spec import AccuracySpec, accuracy_spec
from harness.config import CellConfig
from harness.hardware import hardware_class, usable_cores
from harness.model_source import existing_file, file_hash, model_source, weights_hash
from harness.platform_defaults import CPU_DEFAULTS, GPU_DEFAULTS, PlatformDefaults
from harness.records import PathChoice
from paths.api import EngineConfig, ModelSource, Platform, UserError
from paths.kernels.cache_bytes import PAGE_SIZE
from paths.models.config import ModelConfig

# keys that are part of what is compared, and go to the engine as they stand
_ENGINE_KEYS = ("gpus", "dtype", "kv_dtype", "index_dtype", "mtp", "mtp_mode", "mtp_forced_al")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What is measured once per launch: an engine and a load on it."""

    config: CellConfig
    overrides: tuple[str, ...]
    engine: EngineConfig
    model: ModelConfig
    isl: int
    osl: int
    measure_s: float
    warmup_s: float
    timeout_s: float
    defaults: PlatformDefaults
    requested: dict[str, Any]  # flat; what the record carries
    cell_id: str
    arm_id: str
    chosen: PathChoice | None = None  # how `+path=auto` came to this path
    accuracy: AccuracySpec | None = None

    @property
    def label(self) -> str:
        """Short human name; unique only together with the ids."""
        workload = self.config.workload
        work = f"{self.isl if workload.kind == 'random' else workload.name}/{self.osl}"
        words = [self.engine.path, self.engine.model.name, f"kv={self.engine.kv_dtype}"]
        speculation = mtp_words(self.engine.mtp, self.engine.mtp_forced_al)
        return " ".join([*words, *([f"mtp={speculation}"] if self.engine.mtp else []), work, self.load])

    @property
    def load(self) -> str:
        return load_words(self.config.concurrency, self.config.request_rate)

    @property
    def folder(self) -> str:
        """One path component of at most 80 characters: a readable slug and a hash."""
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", self.label.replace("kv=", "")).strip("-.")
        return f"{slug[:60]}-{_digest([self.cell_id, self.arm_id])[:12]}"

    def command(self, config_dirs: Sequence[Path]) -> str:
        """Measures this cell alone."""
        flags = [word for folder in config_dirs for word in ("--config-dir", str(folder))]
        overrides = [text for text in self.overrides if not text.lstrip("+").startswith("dry_run=")]
        return shlex.join(["python", "-m", "harness", *overrides, *flags])


def resolve_cell(
    config: CellConfig, *, overrides: tuple[str, ...], platform: Platform, revision: str
) -> Cell:
    """Fill in the defaults of `platform` and check what one key alone cannot show. Raises UserError."""
    defaults = CPU_DEFAULTS if platform.device == "cpu" else GPU_DEFAULTS
    source, model = model_source(config)
    engine = _engine(config, platform, defaults, source, model)
    isl = config.isl if config.isl is not None else defaults.isl
    osl = config.osl if config.osl is not None else defaults.osl
    _check_fit(isl=isl, osl=osl, engine=engine, random=config.workload.kind == "random")
    times = {
        name: float(value if (value := getattr(config, name)) is not None else getattr(defaults, name))
        for name in ("measure_s", "warmup_s", "timeout_s")
    }
    identity = {
        **{name: getattr(config, name) for name in _ENGINE_KEYS},
        "model": config.model.name,
        "device": platform.device,
        "hardware": hardware_class(platform),
        "concurrency": config.concurrency,
        "request_rate": config.request_rate,
        "burstiness": "inf" if math.isinf(config.burstiness) else config.burstiness,
        "workload": config.workload.name,
        "isl": isl,
        "osl": osl,
        "num_prompts": config.num_prompts,
        "seed": config.seed,
        **{name: times[name] for name in ("measure_s", "warmup_s")},
    }
    # where the files lie is no part of the identity, what is in them is
    files = {"checkpoint": config.checkpoint, "workload_file": existing_file(config.workload.file)}
    named = config.checkpoint if config.checkpoint in ("auto", "dummy") else "folder"
    contents = [named, source.hf_config, weights_hash(source.checkpoint), file_hash(config.workload.file)]
    accuracy = _accuracy(config)
    asked = [] if accuracy is None else [accuracy.identity()]
    limits = {"timeout_s": times["timeout_s"], "request_timeout_s": config.request_timeout_s}
    settings = {
        "threads": engine.threads,
        "engine": config.engine.model_dump() | {name: getattr(engine, name) for name in _CAPACITIES},
        "options": config.path.options,
        "debug": config.debug.model_dump(),
    }
    return Cell(
        config=config,
        overrides=overrides,
        engine=engine,
        model=model,
        isl=isl,
        osl=osl,
        measure_s=times["measure_s"],
        warmup_s=times["warmup_s"],
        timeout_s=times["timeout_s"],
        defaults=defaults,
        requested={
            "path": config.path.name,
            **files,
            **identity,
            **limits,
            **settings,
            **({} if accuracy is None else {"accuracy": accuracy.describe()}),
        },
        cell_id=_digest([identity, contents, *asked]),
        arm_id=_digest([config.path.name, config.path.impl, settings, revision]),
        accuracy=accuracy,
    )


def _accuracy(config: CellConfig) -> AccuracySpec | None:
    return accuracy_spec(
        asked=config.accuracy,
        shots=config.shots,
        limit=config.limit,
        test_file=config.gsm8k.test_file,
        train_file=config.gsm8k.train_file,
    )


def load_words(concurrency: int | None, request_rate: float | None) -> str:
    """A load in a word: c16, 10/s, 10/s c16."""
    words = [] if request_rate is None else [f"{request_rate:g}/s"]
    return " ".join(words + ([] if concurrency is None else [f"c{concurrency}"]))


def mtp_words(mtp: int, forced_al: float | None) -> str:
    """Drafts of one verification in a word: 3, 3 forced al=2.5. Forced acceptance is never left out."""
    return f"{mtp}" if forced_al is None else f"{mtp} forced al={forced_al:g}"


_CAPACITIES = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "kv_pages")


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _engine(
    config: CellConfig,
    platform: Platform,
    defaults: PlatformDefaults,
    source: ModelSource,
    model: ModelConfig,
) -> EngineConfig:
    limits = {name: getattr(config.engine, name) or getattr(defaults, name) for name in _CAPACITIES}
    if config.engine.max_model_len is None:
        limits["max_model_len"] = min(defaults.max_model_len, model.max_position_embeddings)
    elif config.engine.max_model_len > model.max_position_embeddings:
        raise UserError(
            f"engine.max_model_len={config.engine.max_model_len}: model {source.name} ends at"
            f" {model.max_position_embeddings} positions; lower it or choose another model"
        )
    if config.mtp and not model.num_nextn_predict_layers:
        raise UserError(
            f"mtp={config.mtp}: model {source.name} has no MTP layer (num_nextn_predict_layers is 0 in its"
            " config.json); set mtp=0 or choose another model or checkpoint"
        )
    cores = usable_cores()
    threads = max(1, cores - 1) if config.threads == "auto" else int(config.threads)
    if threads > cores:
        raise UserError(f"threads={threads}: this machine has {cores} cores; allowed: auto, 1 to {cores}")
    return EngineConfig(
        path=config.path.name,
        impl=config.path.impl,
        model=source,
        options=config.path.options,
        device=platform.device,
        gpus=config.gpus,
        threads=threads,
        dtype=config.dtype,
        kv_dtype=config.kv_dtype,
        index_dtype=config.index_dtype,
        hadamard=config.engine.hadamard,
        mtp=config.mtp,
        mtp_forced_al=config.mtp_forced_al,
        **limits,
        seed=config.seed,
        debug=config.debug.model_dump(),
    )


def _check_fit(*, isl: int, osl: int, engine: EngineConfig, random: bool) -> None:
    tokens = isl + osl if random else osl
    if tokens > engine.max_model_len:
        raise UserError(
            f"isl={isl} + osl={osl} is {tokens} tokens, but max_model_len is {engine.max_model_len};"
            " shorten the workload or raise engine.max_model_len (up to the model's limit)"
        )
    capacity = engine.kv_pages * PAGE_SIZE
    if tokens > capacity:
        raise UserError(
            f"isl={isl} + osl={osl} is {tokens} tokens, but engine.kv_pages={engine.kv_pages} holds"
            f" {capacity}; raise engine.kv_pages to {math.ceil(tokens / PAGE_SIZE)} or more"
        )
