"""What a load asks for: prompts as token ids, never the same one twice."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from harness.measurement import Phase


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, [P] token ids, and how many tokens to ask for."""

    ids: npt.NDArray[np.int32]
    max_tokens: int
    hash: str


class PromptSource(Protocol):
    """Prompts of one cell. Warm-up and measured prompts are separate streams of it.

    The n-th measured prompt therefore does not depend on how many the warm-up took, and two arms that are
    given the same seed and salt are measured on the same prompts.
    """

    exact_lengths: bool  # every answer must have exactly max_tokens tokens

    def mark_sent(self, prompts: Sequence[Prompt]) -> int:
        """These leave now; returns how many of them the engine had been sent before."""

    def next(self, n: int, *, phase: Phase = Phase.MEASURED) -> list[Prompt]:
        """The next n prompts of a phase."""


def count_repeated(prompts: Sequence[Prompt], sent: set[str]) -> int:
    """How many of `prompts` are in `sent` (hashes), or twice among themselves; adds them to it."""
    repeated = 0
    for prompt in prompts:
        repeated += prompt.hash in sent
        sent.add(prompt.hash)
    return repeated


def prompt_hash(ids: npt.NDArray[np.int32]) -> str:
    """16 hex digits that identify the token ids."""
    return hashlib.blake2b(np.ascontiguousarray(ids, dtype="<i4").tobytes(), digest_size=8).hexdigest()


def seeded(seed: int, salt: Sequence[str]) -> np.random.Generator:
    """A generator that depends on the seed and on every part of the salt, and on where one part ends."""
    digest = hashlib.sha256("\0".join(salt).encode()).digest()
    words = np.frombuffer(digest, dtype="<u4").tolist()
    return np.random.default_rng([seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF, *words])
