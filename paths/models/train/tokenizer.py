"""The tokenizer of the trained model: byte-level BPE whose words are those of the problems, digits single.

Text is cut before BPE so that no token crosses a border of a problem: a question's end, an answer's start,
an operator with its spaces, the line before the result. Half of the training names are left out of the text
that BPE learns from: names that are spelled in pieces, as those of the test set are, are common in training.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from paths.models.train.problems.describe import canonical_sample
from paths.models.train.problems.names import TRAIN_PEOPLE

SPECIAL_TOKENS = ("<bos>", "<eos>", "<pad>")
BOS, EOS, PAD = range(3)
MAX_VOCABULARY = 2048
PIECES = "|".join(
    (
        r"####",
        r"Question:",
        r"Answer:",
        r" [-+*/=] (?=\d)",
        r" ?\$(?=\d)",
        r"\d",
        r" (?=\d)",
        r" ?[A-Za-z]+",
        r"[.?!]\n",
        r" ?[^\sA-Za-z\d]+",
        r"\s+(?=\s)|\s+",
    )
)


def build_tokenizer() -> Tokenizer:
    """Learned from the canonical sample of the training stream; the same on every machine."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=MAX_VOCABULARY,
        min_frequency=3,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
    )
    tokenizer.train_from_iterator(_texts(), trainer=trainer)
    return tokenizer


def save_tokenizer(folder: Path) -> Path:
    """Write `tokenizer.json` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tokenizer.json"
    build_tokenizer().save(str(path))
    return path


def _texts() -> Iterator[str]:
    left_out = [p.name for p in TRAIN_PEOPLE if hashlib.sha256(f"spelled:{p.name}".encode()).digest()[0] % 2]
    pattern = re.compile(rf" ?\b({'|'.join(left_out)})\b")
    for problem in canonical_sample():
        text = f"Question: {problem.question}\nAnswer: {problem.answer}\n\n"
        yield pattern.sub("", text)
