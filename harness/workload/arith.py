"""Word problems from the generator that the shipped model was trained with, held-out templates and names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from harness.measurement import Phase
from harness.workload.dataset import Encode
from harness.workload.source import Prompt, count_repeated, prompt_hash, seeded
from paths.api import UserError
from paths.models.train.problems.stream import TEST, Problem, problems

_TRIED = 1000  # problems that are looked at before anything starts: the longest has some 100 tokens


class ArithSource:
    """A new problem for every request; deterministic in (seed, salt). Answers end when the model ends them.

    limit: prompt and output tokens that the engine takes. A rare problem that is longer than all that were
    tried first, and does not fit, is left out. Raises UserError for a limit that is too small.
    """

    exact_lengths = False

    def __init__(self, *, encode: Encode, osl: int, seed: int, salt: Sequence[str], limit: int) -> None:
        self._encode, self._osl, self._limit = encode, osl, limit
        self._streams = {phase: self._prompts(seed, (*salt, phase.name)) for phase in Phase}
        self._drawn: set[str] = set()
        self._sent: set[str] = set()
        longest = _longest(encode)
        if longest + osl > limit:
            raise UserError(
                f"workload=arith: a prompt of {longest} tokens and osl={osl} exceed the engine's limit of "
                f"{limit}; lower osl or raise engine.max_model_len"
            )

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
            ids = np.asarray(self._encode(_text(problem)), dtype=np.int32)
            if len(ids) + self._osl <= self._limit:
                yield Prompt(ids, self._osl, prompt_hash(ids))


def _text(problem: Problem) -> str:
    return f"Question: {problem.question}\nAnswer:"


def _longest(encode: Encode) -> int:
    """Tokens of the longest prompt among the first of a stream."""
    return max(len(encode(_text(problem))) for problem in islice(problems(TEST, seed=0), _TRIED))
