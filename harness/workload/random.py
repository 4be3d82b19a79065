"""Random token ids: exactly `isl` in, exactly `osl` out, a new prompt for every request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.measurement import Phase
from harness.workload.source import Prompt, count_repeated, prompt_hash, seeded
from paths.api import UserError

_REDRAWS = 20  # attempts to find a prompt that was not used; short prompts over few ids may run out


def special_ids(hf_config: Mapping[str, Any]) -> frozenset[int]:
    """BOS, EOS and padding ids of an HF config.json; each may be absent, a number or a list."""
    found: set[int] = set()
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = hf_config.get(key)
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if item is not None:
                found.add(int(item))
    return frozenset(found)


def allowed_ids(vocab_size: int, special: Iterable[int]) -> npt.NDArray[np.int32]:
    """Every id below `vocab_size` that is not special, ascending. Raises UserError when none is left."""
    ids = np.setdiff1d(np.arange(vocab_size, dtype=np.int32), np.array(sorted(special), dtype=np.int32))
    if ids.size == 0:
        raise UserError(f"vocab_size={vocab_size}: no token id is left that is not special")
    return ids


class RandomSource:
    """Prompts of `isl` ids drawn from `ids`; deterministic in (seed, salt), unique within the source."""

    exact_lengths = True

    def __init__(
        self, *, ids: npt.NDArray[np.int32], isl: int, osl: int, seed: int, salt: Sequence[str] = ()
    ) -> None:
        if isl < 1:
            raise UserError(f"isl={isl}: a prompt needs at least 1 token")
        self._ids, self._isl, self._osl = ids, isl, osl
        self._streams = {phase: seeded(seed, (*salt, phase.name)) for phase in Phase}
        self._drawn: set[str] = set()
        self._sent: set[str] = set()

    def mark_sent(self, prompts: Sequence[Prompt]) -> int:
        return count_repeated(prompts, self._sent)

    def next(self, n: int, *, phase: Phase = Phase.MEASURED) -> list[Prompt]:
        stream = self._streams[phase]
        block = self._ids[stream.integers(0, len(self._ids), size=(n, self._isl))]  # upper bound is exclusive
        return [self._unused(row, stream) for row in block]

    def _unused(self, row: npt.NDArray[np.int32], stream: np.random.Generator) -> Prompt:
        key = prompt_hash(row)
        for _ in range(_REDRAWS):
            if key not in self._drawn:
                break
            row = self._ids[stream.integers(0, len(self._ids), size=self._isl)]
            key = prompt_hash(row)
        self._drawn.add(key)
        return Prompt(row, self._osl, key)
