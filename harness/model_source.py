"""Where a cell's model, weights and prompts come from, and what is in these files."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import paths
from harness.config import CellConfig
from paths.api import ModelSource, UserError
from paths.models.config import ModelConfig, read_hf_config

_LONGEST_HEADER = 100_000_000  # what the safetensors format allows
_PACKAGE = Path(next(iter(paths.__path__))).resolve()


def model_source(config: CellConfig) -> tuple[ModelSource, ModelConfig]:
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


def existing_file(name: str | None) -> str | None:
    if name is None:
        return None
    file = Path(name).expanduser().resolve()
    if not file.is_file():
        raise UserError(f"workload.file={name}: no such file; give a JSONL file of prompts")
    return str(file)


@lru_cache(maxsize=64)
def file_hash(name: str | None) -> str | None:
    if name is None:
        return None
    try:
        return hashlib.sha256(Path(name).expanduser().read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(
            f"workload.file={name}: cannot read ({error.strerror}); give a readable file"
        ) from error
