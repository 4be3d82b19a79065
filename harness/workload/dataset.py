"""Prompts from a JSONL file: {"prompt": "text"} or {"prompt_ids": [1, 2]}, optionally with "max_tokens"."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.measurement import Phase
from harness.workload.source import Prompt, count_repeated, prompt_hash, seeded
from paths.api import UserError

Encode = Callable[[str], Sequence[int]]
_KEYS = ("prompt", "prompt_ids", "max_tokens")


class Dataset:
    """A file of prompts, in an order shuffled by the seed."""

    def __init__(self, prompts: Sequence[Prompt], *, seed: int = 0) -> None:
        if not prompts:
            raise UserError("the data set has no prompts; it needs at least one line")
        order = seeded(seed, ("dataset",)).permutation(len(prompts))
        self._prompts = [prompts[i] for i in order]

    def part(self, index: int, count: int) -> list[Prompt]:
        """Part `index` of `count` equal parts, disjoint as long as there is a prompt for each of them."""
        total = len(self._prompts)
        if total < count:
            return [self._prompts[index % total]]
        return self._prompts[index * total // count : (index + 1) * total // count]


class DatasetSource:
    """The prompts of one cell: its part of the data set. Answers end when the model ends them.

    Which part depends on the cell's place among the cells of its launch, never on how fast others were, so
    both arms of a cell get the same prompts. Measured prompts are taken from the front and warm-up prompts
    from the back, so that the measured ones do not depend on the length of the warm-up. A part that is used
    up is begun again. `sent` holds what the engine was sent by any cell.
    """

    exact_lengths = False

    def __init__(self, prompts: Sequence[Prompt], sent: set[str] | None = None) -> None:
        self._prompts = prompts
        self._sent = set() if sent is None else sent
        self._taken = dict.fromkeys(Phase, 0)

    def next(self, n: int, *, phase: Phase = Phase.MEASURED) -> list[Prompt]:
        start, total = self._taken[phase], len(self._prompts)
        self._taken[phase] = start + n
        step = 1 if phase is Phase.MEASURED else -1
        first = 0 if phase is Phase.MEASURED else total - 1
        return [self._prompts[(first + step * (start + i)) % total] for i in range(n)]

    def mark_sent(self, prompts: Sequence[Prompt]) -> int:
        return count_repeated(prompts, self._sent)


def load_dataset(
    path: Path,
    *,
    vocab_size: int,
    osl: int,
    seed: int = 0,
    encode: Encode | None,
    max_model_len: int | None = None,
) -> Dataset:
    """Read and check a whole file. `encode` None: the model has no tokenizer, so lines must hold prompt_ids.

    Raises UserError, with the line number, for anything that could not be sent as it stands.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"workload.file={path}: cannot be read ({error}); give a UTF-8 JSONL file") from error
    prompts = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            prompts.append(_parse(line, vocab_size=vocab_size, osl=osl, encode=encode, limit=max_model_len))
        except ValueError as error:
            raise UserError(f"{path}, line {number}: {error}") from error
    if not prompts:
        raise UserError(f'{path}: no prompts; the file needs at least one line such as {{"prompt": "text"}}')
    return Dataset(prompts, seed=seed)


def _parse(line: str, *, vocab_size: int, osl: int, encode: Encode | None, limit: int | None) -> Prompt:
    """One line; ValueError says what is wrong with it."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not valid JSON ({error})") from error
    if not isinstance(data, dict):
        raise ValueError('must be an object such as {"prompt": "text"}')
    unknown = sorted(set(data) - set(_KEYS))
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r}; known: {', '.join(_KEYS)}")
    if ("prompt" in data) == ("prompt_ids" in data):
        raise ValueError('needs either "prompt" or "prompt_ids"')
    ids = (
        _text_ids(data["prompt"], encode)
        if "prompt" in data
        else _checked_ids(data["prompt_ids"], vocab_size)
    )
    if "prompt" in data and ids.max() >= vocab_size:
        raise ValueError(f"the tokenizer gives id {ids.max()}, the model knows 0..{vocab_size - 1}")
    max_tokens = data.get("max_tokens", osl)
    if not _is_int(max_tokens) or max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens!r}; must be a whole number of at least 1")
    if limit is not None and len(ids) + max_tokens > limit:
        raise ValueError(
            f"{len(ids)} prompt + {max_tokens} output tokens exceed the engine's limit of {limit}"
        )
    return Prompt(ids, max_tokens, prompt_hash(ids))


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _text_ids(text: Any, encode: Encode | None) -> npt.NDArray[np.int32]:
    if not isinstance(text, str) or not text:
        raise ValueError(f'"prompt" is {text!r:.40}; must be a text that is not empty')
    if encode is None:
        raise ValueError('"prompt" needs a tokenizer and the model has none; use "prompt_ids"')
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError('"prompt" holds half of a surrogate pair, which is no character; correct the file')
    ids = np.asarray(encode(text), dtype=np.int32)
    if ids.size == 0:
        raise ValueError('"prompt" encodes to no token')
    return ids


def _checked_ids(values: Any, vocab_size: int) -> npt.NDArray[np.int32]:
    if not isinstance(values, list) or not values:
        raise ValueError('"prompt_ids" must be a list of at least one token id')
    for value in values:
        if not _is_int(value) or not 0 <= value < vocab_size:
            raise ValueError(f"token id {value!r} is not in 0..{vocab_size - 1}")
    return np.asarray(values, dtype=np.int32)
