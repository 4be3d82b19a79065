"""What is to be scored: plain data that crosses to the scoring process, and the rules behind it. Pure."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from harness.accuracy.problems import ARITH_TEST, ARITH_TRAIN, read_problems
from paths.api import UserError

Task = Literal["arith_gsm", "gsm8k"]
TASKS: tuple[Task, ...] = get_args(Task)
MOST_SHOTS = 100
FULL, PREFIX = "full", "first"  # what a stage covers
PREFIX_QUESTIONS = 100  # scored once more at concurrency 1
DEFAULT_CONCURRENCY = 64  # of a load that has no concurrency of its own
FEWSHOT_SEED = 1234  # lm-eval's own default: which worked examples a question gets


@dataclass(frozen=True, kw_only=True)
class AccuracySpec:
    """Tasks and how they are asked. The files of gsm8k are None when it comes from the hub."""

    tasks: tuple[str, ...]
    shots: int
    limit: int | None
    test_file: str | None = None
    train_file: str | None = None

    def describe(self) -> dict[str, Any]:
        """What a record keeps as requested."""
        return asdict(self) | {"tasks": list(self.tasks)}

    def identity(self) -> list[Any]:
        """Part of what a cell is: where the files lie is not, what is in them is."""
        asked = [self.tasks, self.shots, self.limit]
        return [*asked, *(_content_hash(file) for file in (self.test_file, self.train_file))]

    def files(self, task: str) -> tuple[Path | None, Path | None]:
        """Questions and worked examples of a task; None: from the hub."""
        if task == "arith_gsm":
            return ARITH_TEST, ARITH_TRAIN
        return Path(self.test_file) if self.test_file else None, self._train()

    def _train(self) -> Path | None:
        return Path(self.train_file) if self.train_file else None

    @property
    def offline(self) -> bool:
        """Every task has its questions here."""
        return all(self.files(task)[0] is not None for task in self.tasks)

    def check_files(self) -> None:
        """Read what is here and see that it suffices. Raises UserError."""
        if self.test_file is not None and self.train_file is None and self.shots > 0:
            raise UserError(
                f"gsm8k.test_file={self.test_file}: shots={self.shots} worked examples need a file, too; set"
                " gsm8k.train_file=FILE, or shots=0"
            )
        if self.train_file is not None and self.test_file is None:
            raise UserError(
                f"gsm8k.train_file={self.train_file}: the questions are missing; set gsm8k.test_file=FILE"
            )
        for task in self.tasks:
            test, train = self.files(task)
            asked = read_problems(test, "gsm8k.test_file") if test is not None else ()
            _check_once(asked, test)
            if train is not None:
                examples = read_problems(train, "gsm8k.train_file")
                _check_examples(len(examples), train, self.shots)
                _check_apart(asked, examples, train)


def _check_once(asked: Sequence[Mapping[str, str]], test: Path | None) -> None:
    """A question that is asked twice counts twice, and makes intervals too narrow."""
    twice = next((text for text, n in Counter(each["question"] for each in asked).items() if n > 1), None)
    if twice is not None:
        raise UserError(f"gsm8k.test_file={test}: asks {twice[:60]!r} twice; remove one of the lines")


def _check_apart(
    asked: Sequence[Mapping[str, str]], examples: Sequence[Mapping[str, str]], train: Path
) -> None:
    """A question that stands among the worked examples is answered by copying."""
    shared = {each["question"] for each in asked} & {each["question"] for each in examples}
    if shared:
        raise UserError(
            f"gsm8k.train_file={train}: {len(shared)} of its questions are asked, too, such as "
            f"{min(shared)[:60]!r}; give a file without them"
        )


@lru_cache(maxsize=8)
def _content_hash(file: str | None) -> str | None:
    if file is None or not Path(file).is_file():
        return None  # `check_files` says that it is missing
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def _check_examples(examples: int, file: Path, shots: int) -> None:
    if shots > examples:
        raise UserError(
            f"shots={shots}: {file.name} has {examples} worked examples; allowed: 0 to {examples}"
        )


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One task asked once: at `concurrency`, of the first `limit` questions (None: all)."""

    task: str
    concurrency: int
    limit: int | None
    part: str  # FULL or PREFIX


@dataclass(frozen=True, kw_only=True)
class PromptRules:
    """How the text of a prompt becomes ids, and what the engine takes."""

    tokenizer: str  # a tokenizer.json
    bos_id: int | None  # stands before every prompt; None: the model takes none
    prefix_id: int  # before a text that is scored without context
    vocab_size: int
    max_length: int  # prompt and answer


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that the scoring process is told. Without stages it only prepares and describes prompts."""

    spec: AccuracySpec
    prompts: PromptRules
    stages: tuple[Stage, ...]
    timeout_s: float


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What the prompts of one task are like."""

    task: str
    questions: int
    longest_prompt: int  # tokens
    max_gen_toks: int
    prompts_hash: str  # of all ids, in order
    version: str  # of lm-eval and its task


# what is known of the prompts of a spec: they depend on the model's tokenizer, too
PreparedPrompts = Mapping[tuple[AccuracySpec, PromptRules], Sequence[Prepared]]


def accuracy_spec(
    *,
    asked: Task | Sequence[Task] | None,
    shots: int,
    limit: int | None,
    test_file: str | None,
    train_file: str | None,
) -> AccuracySpec | None:
    """What the command line asks for; None: no scoring. Files count only for the task that they belong to."""
    if asked is None:
        return None
    tasks = (asked,) if isinstance(asked, str) else tuple(asked)
    if not tasks:
        raise UserError(f"accuracy=[]: empty; allowed: {', '.join(TASKS)}, a list of them, or null")
    twice = next((task for task in tasks if tasks.count(task) > 1), None)
    if twice is not None:
        raise UserError(f"accuracy=[{','.join(tasks)}]: {twice} is there twice; name each task once")
    if "gsm8k" not in tasks:
        for name, file in (("test_file", test_file), ("train_file", train_file)):
            if file is not None:
                raise UserError(f"gsm8k.{name}={file}: gsm8k is not scored; set accuracy=gsm8k to ask it")
    return AccuracySpec(
        tasks=tasks,
        shots=shots,
        limit=limit,
        test_file=_absolute(test_file),
        train_file=_absolute(train_file),
    )


def _absolute(file: str | None) -> str | None:
    return None if file is None else str(Path(file).expanduser().resolve())


def stages(spec: AccuracySpec, concurrency: int) -> tuple[Stage, ...]:
    """Every task in full at `concurrency` and its first questions at 1: some faults show only under load."""
    found = []
    for task in spec.tasks:
        found.append(Stage(task=task, concurrency=concurrency, limit=spec.limit, part=FULL))
        if concurrency > 1:
            few = PREFIX_QUESTIONS if spec.limit is None else min(spec.limit, PREFIX_QUESTIONS)
            found.append(Stage(task=task, concurrency=1, limit=few, part=PREFIX))
    return tuple(found)


def highest(concurrencies: Iterable[int | None]) -> int:
    """Index of the load that is scored: the highest, the last of equals; no limit counts as the lowest."""
    return max(enumerate(concurrencies), key=lambda pair: (pair[1] or 0, pair[0]))[0]
