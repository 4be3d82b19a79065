"""Text into prompt ids, by the rules of the model: built once as ids, with one BOS or none."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from harness.accuracy.spec import PromptRules
from paths.api import EngineConfig, UserError
from paths.tokenizer import Tokenizer, load_tokenizer

TOKENIZER_CONFIG = "tokenizer_config.json"


def prompt_rules(engine: EngineConfig) -> PromptRules:
    """What the model's own files say. Raises UserError for a model without a tokenizer."""
    model = engine.model
    if model.tokenizer is None:
        raise UserError(
            f"accuracy: model {model.name} has no tokenizer; give a checkpoint folder with a tokenizer.json"
        )
    bos, eos = _first(model.hf_config.get("bos_token_id")), _first(model.hf_config.get("eos_token_id"))
    prefix = eos if bos is None else bos
    return PromptRules(
        tokenizer=model.tokenizer,
        bos_id=bos if bos is not None and takes_bos(Path(model.tokenizer), bos) else None,
        prefix_id=0 if prefix is None else prefix,
        vocab_size=int(model.hf_config["vocab_size"]),
        max_length=engine.max_model_len,
    )


def takes_bos(tokenizer: Path, bos_id: int) -> bool:
    """Whether plain prompts of the model begin with BOS.

    `add_bos_token` of the tokenizer_config.json beside it decides; without one, whether the tokenizer itself
    puts BOS in front. Chat templates are no part of it: none is applied.
    """
    config = tokenizer.with_name(TOKENIZER_CONFIG)
    if config.is_file():
        try:
            given: Any = json.loads(config.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserError(f"{config}: not valid JSON ({error}); correct or remove it") from error
        if isinstance(given, dict) and isinstance(given.get("add_bos_token"), bool):
            return bool(given["add_bos_token"])
    load_tokenizer(tokenizer)  # says in one line what is wrong with the file
    ids = tokenizers.Tokenizer.from_file(str(tokenizer)).encode("a").ids
    return bool(ids) and ids[0] == bos_id


def _first(token: Any) -> int | None:
    """HF allows one id, a list of them, or none."""
    return int(token[0]) if isinstance(token, list) and token else token if isinstance(token, int) else None


class PromptEncoder:
    """Encodes by `PromptRules` and decodes what comes back."""

    def __init__(self, rules: PromptRules) -> None:
        self.rules = rules
        self.tokenizer: Tokenizer = load_tokenizer(Path(rules.tokenizer))

    def encode(self, text: str, *, bos: bool = True) -> list[int]:
        """Ids of `text`, behind BOS where the model takes one. Raises UserError for two of them."""
        ids = self.tokenizer.encode(text)
        if bos and self.rules.bos_id is not None:
            ids = [self.rules.bos_id, *ids]
            if ids[:2] == [self.rules.bos_id] * 2:
                raise UserError(
                    f"a prompt begins with two BOS ({self.rules.bos_id}): the text or the tokenizer adds one"
                    " of its own; take it out"
                )
        if ids and max(ids) >= self.rules.vocab_size:
            raise UserError(
                f"the tokenizer gives id {max(ids)}, the model knows 0..{self.rules.vocab_size - 1}; use the"
                " model's own tokenizer.json"
            )
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of an answer, without special tokens."""
        return self.tokenizer.decode(ids)


def ids_hash(prompts: Iterable[Sequence[int] | npt.NDArray[np.int32]]) -> str:
    """First 16 hex digits of SHA-256 over the ids of prompts, lengths included."""
    digest = hashlib.sha256()
    for ids in prompts:
        array = np.asarray(ids, dtype="<i4")
        digest.update(len(array).to_bytes(8, "little") + array.tobytes())
    return digest.hexdigest()[:16]
