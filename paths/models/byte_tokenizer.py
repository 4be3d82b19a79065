"""Writes the tokenizer of tiny_glm: every byte is a token, so any UTF-8 text round-trips.

    python -m paths.models.byte_tokenizer paths/models/checkpoints/tiny_glm/tokenizer.json

Ids: <bos> 0, <eos> 1, <pad> 2, then the bytes 0 to 255 as 3 to 258. There are no merges.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL_TOKENS = ("<bos>", "<eos>", "<pad>")
NUM_TOKENS = len(SPECIAL_TOKENS) + 256


def byte_tokenizer() -> Tokenizer:
    """Byte-level BPE without merges."""
    vocab = {token: i for i, token in enumerate(SPECIAL_TOKENS)}
    vocab |= {letter: len(SPECIAL_TOKENS) + byte for byte, letter in enumerate(_byte_letters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    return tokenizer


def _byte_letters() -> list[str]:
    """The printable stand-in of each byte in byte-level BPE (GPT-2): itself if printable, else 256 and up."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    letters, spare = [], 256
    for byte in range(256):
        letters.append(chr(byte if byte in printable else spare))
        spare += byte not in printable
    return letters


if __name__ == "__main__":
    for target in sys.argv[1:]:
        byte_tokenizer().save(str(Path(target)))
