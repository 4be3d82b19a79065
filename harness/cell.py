"""A validated configuration with every default resolved for this machine, and its identities."""

from __future__ import annotations

import hashlib
import json
import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import paths
from harness.accuracy.spec import AccuracySpec, accuracy_spec
from harness.config import CellConfig
from harness.hardware import hardware_class, usable_cores
from harness.records import PathChoice
from paths.api import EngineConfig, ModelSource, Platform, UserError
from paths.kernels.cache_bytes import PAGE_SIZE
from paths.models.config import ModelConfig, read_hf_config

# keys that are part of what is compared, and go to the engine as they stand
_ENGINE_KEYS = ("gpus", "dtype", "kv_dtype", "index_dtype", "mtp", "mtp_mode", "mtp_forced_al")
_LONGEST_HEADER = 100_000_000  # what the safetensors format allows
_PACKAGE = Path(next(iter(paths.__path__))).resolve()


@dataclass(frozen=True, kw_only=True)
class PlatformDefaults:
    """What null means. Only sizes differ between platforms, never the model."""

    isl: int
    osl: int
    measure_s: float
    warmup_s: float
    timeout_s: float
    warmup_waves: int  # requests per slot
    requests_per_slot: int  # measured, at least
    requests_in_one_slot: int  # measured at concurrency 1, at least
    lag_limit_ms: float  # of the client; the larger of this and the share below
    lag_share_of_ttft: float
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    kv_pages: int

    def min_requests(self, concurrency: int) -> int:
        """Measured requests that a closed loop sends at least."""
        least = self.requests_in_one_slot if concurrency == 1 else 0
        return max(self.requests_per_slot * concurrency, least)


CPU_DEFAULTS = PlatformDefaults(
    isl=32, osl=16, measure_s=15.0, warmup_s=5.0, timeout_s=600.0,
    warmup_waves=1, requests_per_slot=2, requests_in_one_slot=2, lag_limit_ms=10.0, lag_share_of_ttft=0.05,
    max_num_seqs=1024, max_num_batched_tokens=2048, max_model_len=8192, kv_pages=2048,
)  # fmt: skip
GPU_DEFAULTS = PlatformDefaults(
    isl=1024, osl=1024, measure_s=60.0, warmup_s=20.0, timeout_s=3600.0,
    warmup_waves=2, requests_per_slot=5, requests_in_one_slot=32, lag_limit_ms=1.0, lag_share_of_ttft=0.01,
    max_num_seqs=1024, max_num_batched_tokens=8192, max_model_len=8192, kv_pages=32768,
)  # fmt: skip


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
        random = self.config.workload.kind == "random"
        work = f"{self.isl}/{self.osl}" if random else self.config.workload.name
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
    source, model = _model(config)
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
    files = {"checkpoint": config.checkpoint, "workload_file": _existing_file(config.workload.file)}
    named = config.checkpoint if config.checkpoint in ("auto", "dummy") else "folder"
    contents = [named, source.hf_config, weights_hash(source.checkpoint), _file_hash(config.workload.file)]
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


def _model(config: CellConfig) -> tuple[ModelSource, ModelConfig]:
    """Where the model comes from; a checkpoint folder brings its own config.json and tokenizer."""
    hf_config, checkpoint = config.model.hf_config, config.checkpoint
    tokenizer = _packaged_tokenizer(config.model.tokenizer)
    if checkpoint == "auto":
        shipped = _PACKAGE / "models" / "checkpoints" / config.model.name
        checkpoint = str(shipped) if any(shipped.glob("*.safetensors")) else "dummy"
    elif checkpoint != "dummy":
        folder = Path(checkpoint).expanduser().resolve()
        hf_config = _checkpoint_config(folder)
        own = folder / "tokenizer.json"
        checkpoint, tokenizer = str(folder), str(own) if own.is_file() else tokenizer
    source = ModelSource(
        name=config.model.name, hf_config=hf_config, checkpoint=checkpoint, tokenizer=tokenizer
    )
    return source, _parse_model(json.dumps(hf_config))


@lru_cache(maxsize=64)
def _parse_model(hf_config: str) -> ModelConfig:
    return ModelConfig.from_hf(json.loads(hf_config))


@lru_cache(maxsize=64)
def _packaged_tokenizer(name: str | None) -> str | None:
    if name is None:
        return None
    file = _PACKAGE / name
    if not file.is_file():
        raise UserError(
            f"model.tokenizer={name}: no such file under {_PACKAGE}; name a tokenizer.json or null"
        )
    return str(file)


@lru_cache(maxsize=64)
def _checkpoint_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json. Raises UserError, also when there are no weights beside it."""
    remedy = "allowed: auto, dummy, or a folder with config.json and *.safetensors"
    if not folder.is_dir():
        raise UserError(f"checkpoint={folder}: no such folder; {remedy}")
    content = read_hf_config(folder)
    if not any(folder.glob("*.safetensors")):
        raise UserError(f"checkpoint={folder}: no *.safetensors file in it; {remedy}")
    return content


@lru_cache(maxsize=64)
def weights_hash(checkpoint: str) -> str | None:
    """Names, sizes and headers of the safetensors files of a folder; None for `dummy`. Raises UserError.

    A header holds name, dtype, shape and place of every tensor. The values are not read: that would take
    minutes for a large model.
    """
    if checkpoint == "dummy":
        return None
    digest = hashlib.sha256()
    for file in sorted(Path(checkpoint).glob("*.safetensors")):
        try:
            with file.open("rb") as content:
                size = int.from_bytes(content.read(8), "little")
                header = content.read(min(size, _LONGEST_HEADER))
        except OSError as error:
            raise UserError(f"checkpoint={checkpoint}: cannot read {file.name} ({error.strerror})") from error
        digest.update(f"{file.name}\0{file.stat().st_size}\0".encode() + header)
    return digest.hexdigest()


def _existing_file(name: str | None) -> str | None:
    if name is None:
        return None
    file = Path(name).expanduser().resolve()
    if not file.is_file():
        raise UserError(f"workload.file={name}: no such file; give a JSONL file of prompts")
    return str(file)


@lru_cache(maxsize=64)
def _file_hash(name: str | None) -> str | None:
    if name is None:
        return None
    try:
        return hashlib.sha256(Path(name).expanduser().read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(
            f"workload.file={name}: cannot read ({error.strerror}); give a readable file"
        ) from error
