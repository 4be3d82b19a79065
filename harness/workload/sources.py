"""Makes the prompts of a cell: random, word problems, a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.workload.arith import ArithSource
from harness.workload.dataset import Dataset, load_dataset
from harness.workload.random import RandomSource, allowed_ids, special_ids
from paths.api import UserError
from paths.tokenizer import load_tokenizer


def make_random(
    *,
    isl: int,
    osl: int,
    seed: int,
    salt: Sequence[str],
    hf_config: Mapping[str, Any],
    tokenizer: Path | None = None,
) -> RandomSource:
    """Token ids that the model knows. `salt` names the cell: no cell repeats another one's prompts, and both
    arms of a cell get the same ones. Raises UserError.
    """
    special = special_ids(hf_config) | (_added_special_ids(tokenizer) if tokenizer else frozenset())
    return RandomSource(
        ids=allowed_ids(_vocab_size(hf_config), special), isl=isl, osl=osl, seed=seed, salt=salt
    )


def make_arith(
    *, osl: int, seed: int, salt: Sequence[str], tokenizer: Path | None, max_model_len: int
) -> ArithSource:
    """Word problems; `salt` as of `make_random`. Raises UserError."""
    if tokenizer is None:
        raise UserError("workload=arith sends text and the model has no tokenizer; use workload=random")
    encode = load_tokenizer(tokenizer).encode
    return ArithSource(encode=encode, osl=osl, seed=seed, salt=salt, limit=max_model_len)


def make_dataset(
    file: Path,
    *,
    osl: int,
    seed: int,
    hf_config: Mapping[str, Any],
    tokenizer: Path | None = None,
    max_model_len: int | None = None,
) -> Dataset:
    """The data set of one launch. Raises UserError naming file and line."""
    encode = load_tokenizer(tokenizer).encode if tokenizer is not None else None
    return load_dataset(
        file,
        vocab_size=_vocab_size(hf_config),
        osl=osl,
        seed=seed,
        encode=encode,
        max_model_len=max_model_len,
    )


def _vocab_size(hf_config: Mapping[str, Any]) -> int:
    size = hf_config.get("vocab_size")
    if not isinstance(size, int) or size < 1:
        raise UserError(f"vocab_size={size!r} in the model's config: must be a whole number of at least 1")
    return size


def _added_special_ids(tokenizer: Path) -> frozenset[int]:
    """Ids that a tokenizer.json marks as special. Raises UserError when the file is unreadable."""
    try:
        added = json.loads(tokenizer.read_text(encoding="utf-8")).get("added_tokens") or []
        return frozenset(int(token["id"]) for token in added if token.get("special"))
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise UserError(
            f"tokenizer {tokenizer}: unreadable ({error}); give a valid tokenizer.json"
        ) from error
