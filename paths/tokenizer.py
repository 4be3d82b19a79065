"""Text to token ids and back. The detokenizer is incremental and never emits half a UTF-8 character."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tokenizers

from paths.api import UserError

REPLACEMENT = "\ufffd"


class Tokenizer:
    """A `tokenizer.json` behind the two verbs that the engine and the harness need."""

    def __init__(self, path: Path) -> None:
        try:
            self._inner = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the Rust binding raises bare Exception for every fault
            raise UserError(f"tokenizer {path}: unreadable ({error}); give a valid tokenizer.json") from error
        self._inner.encode_special_tokens = True  # "<eos>" inside a prompt is text, not the end of it

    def encode(self, text: str) -> list[int]:
        """Token ids without special tokens: prompts are built once as ids, so nobody adds a second BOS."""
        return list(self._inner.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return self._inner.decode(list(ids), skip_special_tokens=True)


def load_tokenizer(path: Path) -> Tokenizer:
    """Raises UserError when the file is missing or malformed."""
    if not path.is_file():
        raise UserError(f"tokenizer {path}: no such file; give the path of a tokenizer.json")
    return Tokenizer(path)


class IncrementalDetokenizer:
    """Text of a growing token sequence.

    Decodes a short window that starts at the last stable boundary: the cost per token does not grow with the
    output, and a multi-byte character split over tokens stays pending until it is whole.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._prefix = 0  # start of the decoding window
        self._read = 0  # ids before this index are in `text`
        self.text = ""

    def append(self, ids: Sequence[int]) -> str:
        """Add tokens and return the text that became final."""
        self._ids.extend(int(i) for i in ids)
        before = self._tokenizer.decode(self._ids[self._prefix : self._read])
        after = self._tokenizer.decode(self._ids[self._prefix :])
        if after.endswith(REPLACEMENT) or len(after) <= len(before):
            return ""
        self._prefix, self._read = self._read, len(self._ids)
        new = after[len(before) :]
        self.text += new
        return new

    def flush(self) -> str:
        """Text including an unfinished character, which decodes to the replacement character."""
        before = self._tokenizer.decode(self._ids[self._prefix : self._read])
        after = self._tokenizer.decode(self._ids[self._prefix :])
        self._prefix = self._read = len(self._ids)
        self.text += after[len(before) :]
        return self.text
