"""Tensors by HF name from a folder of safetensors, whole or sharded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from paths.api import UserError

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class Checkpoint:
    """Reads one tensor at a time, so that a model larger than the spare memory still loads.

    Raises UserError, in one line that names tensor and file, for a missing or truncated file, a missing
    tensor, a wrong shape, and quantized weights.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, Any] = {}
        self._file_of = self._list_tensors()

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def get(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor as stored, on the CPU."""
        if name not in self._file_of:
            raise UserError(
                f"tensor {name} is missing from {self.folder}: "
                "the checkpoint must fit its config.json; copy it again"
            )
        file_name = self._file_of[name]
        path, handle = self.folder / file_name, self._open(file_name)
        try:
            found = tuple(handle.get_slice(name).get_shape())
            if found != shape:
                raise UserError(
                    f"tensor {name} in {path} has shape {list(found)}, config.json asks for {list(shape)}: "
                    "use the config.json that belongs to the checkpoint"
                )
            tensor = handle.get_tensor(name)
        except SafetensorError as error:
            raise UserError(f"cannot read tensor {name} from {path} ({error}): copy it again") from error
        if tensor.dtype not in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
            stored = str(tensor.dtype).removeprefix("torch.")
            raise UserError(
                f"tensor {name} in {path} is quantized ({stored}): "
                "allowed are bf16, fp16 and float32 weights; use an unquantized checkpoint"
            )
        return tensor

    def _list_tensors(self) -> dict[str, str]:
        index = self.folder / INDEX_FILE
        if not index.exists():
            return dict.fromkeys(self._open(SINGLE_FILE).keys(), SINGLE_FILE)
        try:
            listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            return {str(name): str(file_name) for name, file_name in listed.items()}
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise UserError(f"{index} has no readable weight_map ({error!r}): copy it again") from error

    def _open(self, file_name: str) -> Any:
        if file_name not in self._files:
            path = self.folder / file_name
            if not path.is_file():
                raise UserError(
                    f"weight file {path} is missing: checkpoint must be 'dummy' or a folder with config.json "
                    f"and {SINGLE_FILE} or {INDEX_FILE} with its shards"
                )
            try:
                self._files[file_name] = safe_open(path, framework="pt", device="cpu")
            except (SafetensorError, OSError) as error:
                raise UserError(f"weight file {path} is truncated ({error}): copy it again") from error
        return self._files[file_name]
