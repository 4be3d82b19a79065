"""Exact match of greedy answers on held-out problems, and the acceptance of MTP's first draft."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice

from tokenizers import Tokenizer

from paths.models.train.decoder import first_draft_acceptance, greedy
from paths.models.train.documents import prompt_text
from paths.models.train.model import TrainedModel
from paths.models.train.parameters import Parameters
from paths.models.train.problems.stream import TEST, TRAIN, Problem, problems, test_set

VALIDATION_SEED, EXAMPLE_SEED = 30_000, 40_000
MAX_NEW, BATCH = 128, 16
RESULT = re.compile(r"#### (-?[\d.,]+)")


@dataclass(frozen=True)
class Score:
    """Counts over the problems, and each problem's answer."""

    shots: int
    right: int
    total: int
    accepted: int
    drafted: int
    answers: tuple[tuple[Problem, str], ...]

    @property
    def exact_match(self) -> float:
        return self.right / max(self.total, 1)

    def as_point(self) -> dict[str, float | str]:
        point: dict[str, float | str] = {f"exact_match_{self.shots}": round(self.exact_match, 4)}
        if self.drafted:
            point["acceptance"] = round(self.accepted / self.drafted, 4)
        return point


def evaluate(
    model: TrainedModel,
    p: Parameters,
    tokenizer: Tokenizer,
    *,
    shots: int,
    number: int,
    sparse: bool,
    mtp: bool,
    final: bool = False,
) -> Score:
    """Held-out templates and names. final: the test set that is shipped, else problems beside it."""
    chosen = test_set(number) if final else list(islice(problems(TEST, seed=VALIDATION_SEED), number))
    examples = problems(TRAIN, seed=EXAMPLE_SEED)
    prompts = [
        tokenizer.encode(prompt_text(problem.question, list(islice(examples, shots)))).ids
        for problem in chosen
    ]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    outputs: list[list[int]] = [[] for _ in prompts]
    accepted = drafted = 0
    for start in range(0, len(order), BATCH):
        batch = order[start : start + BATCH]
        texts = [prompts[i] for i in batch]
        found = greedy(model, p, texts, max_new=MAX_NEW, sparse=sparse)
        for i, output in zip(batch, found, strict=True):
            outputs[i] = output
        if mtp:
            right, of = first_draft_acceptance(model, p, texts, found, max_new=MAX_NEW, sparse=sparse)
            accepted, drafted = accepted + right, drafted + of
    answers = tuple((problem, tokenizer.decode(out)) for problem, out in zip(chosen, outputs, strict=True))
    right = sum(result(text) == problem.value for problem, text in answers)
    return Score(shots, right, len(chosen), accepted, drafted, answers)


def result(text: str) -> str | None:
    """The number behind `####`, as it stands."""
    found = RESULT.search(text.split("Question:")[0])
    return found[1] if found else None
