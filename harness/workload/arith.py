"""Word problems from the generator that the shipped model was trained with, held-out templates and names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from harness.measurement import Phase
from harness.workload.dataset import Encode
from harness.workload.source import Prompt, count_repeated, prompt_hash, seeded
from paths.api import UserError
from paths.models.train.problems.stream import TEST, problems

_TRIED = 64  # prompts that are looked at before anything starts


class ArithSource:
    """A new problem for every request; deterministic in (seed, salt). Answers end when the model ends them.

    limit: prompt and output tokens that the engine takes. Raises UserError for one that is too small, also
    from `next`, where a prompt is longer than all that were tried first.
    """

    exact_lengths = False

    def __init__(self, *, encode: Encode, osl: int, seed: int, salt: Sequence[str], limit: int) -> None:
        self._encode, self._osl, self._limit = encode, osl, limit
        self._streams = {phase: self._prompts(seed, (*salt, phase.name)) for phase in Phase}
        self._drawn: set[str] = set()
        self._sent: set[str] = set()
        tried = self._prompts(seed, salt)
        for _ in range(_TRIED):
            next(tried)

    def mark_sent(self, prompts: Sequence[Prompt]) -> int:
        return count_repeated(prompts, self._sent)

    def next(self, n: int, *, phase: Phase = Phase.MEASURED) -> list[Prompt]:
        return [self._unused(phase) for _ in range(n)]

    def _unused(self, phase: Phase) -> Prompt:
        """The next problem that was not drawn before: short ones come twice at times."""
        while True:
            prompt = next(self._streams[phase])
            if prompt.hash not in self._drawn:
                self._drawn.add(prompt.hash)
                return prompt

    def _prompts(self, seed: int, salt: Sequence[str]) -> Iterator[Prompt]:
        stream = int(seeded(seed, salt).integers(2**62))
        for problem in problems(TEST, seed=stream):
            ids = np.asarray(self._encode(f"Question: {problem.question}\nAnswer:"), dtype=np.int32)
            if len(ids) + self._osl > self._limit:
                raise UserError(
                    f"workload=arith: a prompt of {len(ids)} tokens and osl={self._osl} exceed the engine's "
                    f"limit of {self._limit}; lower osl or raise engine.max_model_len"
                )
            yield Prompt(ids, self._osl, prompt_hash(ids))
