"""Problems as token documents, packed into rows of one length.

A document is zero to five worked examples and one more problem, in the prompt style of lm-eval's GSM8K.
Every answer is a target, and after each the target is the end of the text, whatever follows. Some documents
are drills: nothing but equations, taken from answers to other problems of the stream.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import Encoding, Tokenizer
from torch import Tensor

from paths.models.train.compounds import compound
from paths.models.train.equations import equation
from paths.models.train.problems.stream import TRAIN, Problem, problem
from paths.models.train.renaming import with_invented_names
from paths.models.train.tokenizer import BOS, EOS, PAD

SEPARATOR = "\n\n"
BOS_SHARE = 0.2  # prompts come with and without it
WAITING = 48  # documents to choose from when a row is filled
RESULT_WEIGHT = 3.0  # of the digits behind "=": what a small model finds hardest
OPERATOR_WEIGHT = 4.0  # of + - * / in an answer: most wrong answers are wrong sequences of operations
COPY_WEIGHT = 3.0  # of the pieces of a name that came before: the rest of a name is copied or it is wrong
NAME = re.compile(r"[A-Z][a-z]+")
DRILL_PROBLEMS = 4  # whose equations make one drill
HARD_SHARE = 0.5  # of a drill's equations: drawn harder than those of problems
EQUATION = re.compile(r"[\d.]+ [-+*/] [\d.]+ = \d+(?:\.\d+)?")


def prompt_text(question: str, examples: Sequence[Problem] = ()) -> str:
    """`Question: …\\nAnswer:` behind worked examples."""
    shown = [f"Question: {p.question}\nAnswer: {p.answer}{SEPARATOR}" for p in examples]
    return "".join(shown) + f"Question: {question}\nAnswer:"


@dataclass(frozen=True)
class Document:
    """Tokens, the token that should follow each, and how much that counts."""

    tokens: list[int]
    targets: list[int]
    weights: list[float]


@dataclass(frozen=True)
class Rows:
    """Packed documents, all `[B, L]`: `document` is 1, 2, … per row and 0 for padding."""

    tokens: Tensor
    targets: Tensor
    weights: Tensor
    positions: Tensor
    document: Tensor

    @property
    def num_tokens(self) -> int:
        return int((self.document > 0).sum())


class DocumentStream:
    """Documents of the training stream; `index` is the next problem's number, `waiting` is for later rows."""

    def __init__(
        self, tokenizer: Tokenizer, *, seed: int, index: int = 0, question_weight: float = 0.1
    ) -> None:
        self.tokenizer, self.seed, self.index = tokenizer, seed, index
        self.question_weight = question_weight
        self.waiting: list[Document] = []
        self._separator = tokenizer.encode(SEPARATOR).ids
        _, self._equals, _ = tokenizer.encode("1 = 2").ids
        self._operators = {tokenizer.encode(f"1 {operator} 2").ids[1] for operator in "+-*/"}
        self._digits = {token for text in "0123456789." for token in tokenizer.encode(text).ids}

    def document(
        self,
        *,
        max_length: int,
        shots: tuple[int, int],
        drills: float = 0.0,
        invented: float = 0.0,
        compounds: float = 0.0,
    ) -> Document:
        """One whose number of examples lies in `shots`, shortened by examples to fit `max_length`.

        drills: the share of documents that are drills. invented: the share of problems with invented names.
        compounds: the share of problems that are compounds.
        """
        rng = random.Random(f"{self.seed}/{self.index}")
        if rng.random() < drills:
            return self._drill(max_length)
        wanted = rng.randint(*shots) + 1
        tokens, targets, weights = [], [], []
        if rng.random() < BOS_SHARE:
            tokens, targets, weights = [BOS], [PAD], [0.0]
        for number in range(wanted):
            chosen = problem(TRAIN, seed=self.seed, index=self.index)
            if rng.random() < compounds:
                chosen = compound(random.Random(f"compound {self.seed}/{self.index}"))
            if rng.random() < invented:
                chosen = with_invented_names(chosen, rng)
            part = self._problem(chosen)
            if len(tokens) + len(part.tokens) + 2 > max_length:
                if number == 0:  # a problem longer than a row: take the next one
                    self.index += 1
                    return self.document(
                        max_length=max_length,
                        shots=shots,
                        drills=drills,
                        invented=invented,
                        compounds=compounds,
                    )
                break
            self.index += 1
            if number:
                tokens += self._separator
                targets += [PAD] * len(self._separator)
                weights += [0.0] * len(self._separator)
            tokens += part.tokens
            targets += part.targets
            weights += part.weights
        return Document(tokens, targets, weights)

    def rows(self, *, count: int, length: int, shots: tuple[int, int], **shares: float) -> Rows:
        """`count` rows, each begun by the document that waited longest and filled with the largest that fit.

        shares: as `document` takes them.
        """
        self.waiting = [document for document in self.waiting if len(document.tokens) <= length]
        rows = []
        for _ in range(count):
            row: list[Document] = []
            free = length
            while True:
                while len(self.waiting) < WAITING:
                    self.waiting.append(self.document(max_length=length, shots=shots, **shares))
                fitting = [document for document in self.waiting if len(document.tokens) <= free]
                if not fitting:
                    break
                chosen = max(fitting, key=lambda document: len(document.tokens)) if row else self.waiting[0]
                self.waiting.remove(chosen)
                row.append(chosen)
                free -= len(chosen.tokens)
            rows.append(row)
        return pack(rows, length)

    def _problem(self, chosen: Problem) -> Document:
        question, answer = prompt_text(chosen.question), f" {chosen.answer}"
        asked, answered = self.tokenizer.encode(question), self.tokenizer.encode(answer)
        copied = self._copied(question + answer, (asked, 0), (answered, len(question)))
        weights = [self.question_weight] * len(asked.ids)
        weights += [
            RESULT_WEIGHT if result else OPERATOR_WEIGHT if token in self._operators else 1.0
            for token, result in zip(answered.ids, self._results(answered.ids), strict=True)
        ]
        weights = [COPY_WEIGHT if again else w for again, w in zip(copied, weights, strict=True)]
        return Document(asked.ids + answered.ids, [*asked.ids[1:], *answered.ids, EOS], [*weights[1:], 1.0])

    def _copied(self, text: str, *parts: tuple[Encoding, int]) -> list[bool]:
        """Which tokens of the parts, given with offsets in the text, spell a name that came before."""
        names = list(NAME.finditer(text))
        again = [name.span() for i, name in enumerate(names) if name[0] in {other[0] for other in names[:i]}]
        spans = [(a + offset, b + offset) for part, offset in parts for a, b in part.offsets]
        inside = [next((span for span in again if span[0] < b and a < span[1]), None) for a, b in spans]
        pieces = Counter(span for span in inside if span)
        return [span is not None and pieces[span] > 1 for span in inside]

    def _drill(self, max_length: int) -> Document:
        """One equation a line; only results count, and that they end."""
        rng = random.Random(f"drill {self.seed}/{self.index}")
        shown: list[str] = []
        for _ in range(DRILL_PROBLEMS):
            chosen = problem(TRAIN, seed=self.seed, index=self.index)
            self.index += 1
            found = EQUATION.findall(chosen.answer)
            shown += [equation(rng) for _ in found] if rng.random() < HARD_SHARE else found
        tokens = [token for line in shown for token in self.tokenizer.encode(f" {line}.\n").ids][:max_length]
        results = self._results(tokens)
        counted = [float(now or before) for before, now in zip([False, *results], results, strict=False)]
        return Document(tokens, [*tokens[1:], PAD], [*counted[1:], 0.0])

    def _results(self, tokens: list[int]) -> list[bool]:
        """Which tokens are digits behind an equals sign."""
        found, result = [], False
        for token in tokens:
            found.append(result and token in self._digits)
            result = token == self._equals or found[-1]
        return found


def pack(rows: Sequence[Sequence[Document]], length: int) -> Rows:
    """Documents side by side, padded to `length`; positions start at 0 in each."""
    shape = (len(rows), length)
    tokens, targets = torch.full(shape, PAD), torch.full(shape, PAD)
    positions, document = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
    weights = torch.zeros(shape)
    for i, row in enumerate(rows):
        start = 0
        for number, part in enumerate(row, start=1):
            end = start + len(part.tokens)
            tokens[i, start:end] = torch.tensor(part.tokens)
            targets[i, start:end] = torch.tensor(part.targets)
            weights[i, start:end] = torch.tensor(part.weights)
            positions[i, start:end] = torch.arange(end - start)
            document[i, start:end] = number
            start = end
    return Rows(tokens, targets, weights, positions, document)
