"""The tasks as lm-eval's own ConfigurableTask. Imports lm-eval: for the scoring process only.

Both tasks are lm-eval's gsm8k.yaml, read from the installed package: prompts, stop strings, the filters
`strict-match` and `flexible-extract` and the metric stay lm-eval's own. Only the questions and the number of
worked examples are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import datasets
import lm_eval.tasks
import yaml
from lm_eval.api.task import ConfigurableTask

from harness.accuracy.problems import read_problems
from harness.accuracy.spec import FEWSHOT_SEED, AccuracySpec
from paths.api import UserError

_YAML = Path(lm_eval.tasks.__file__).parent / "gsm8k" / "gsm8k.yaml"


def make_task(name: str, spec: AccuracySpec) -> ConfigurableTask:
    """One task with its questions. Raises UserError when they cannot be had."""
    config: dict[str, Any] = yaml.safe_load(_YAML.read_text(encoding="utf-8"))
    config |= {"task": name, "num_fewshot": spec.shots}
    test, train = spec.files(name)
    if test is None:
        return _seeded(_from_hub(config))
    config["custom_dataset"] = _local(test, train)
    if train is None:  # without worked examples
        config |= {"training_split": None, "fewshot_split": None}
    return _seeded(ConfigurableTask(config=config))


def task_version(task: ConfigurableTask) -> str:
    """Of lm-eval and of its task's definition."""
    return f"lm-eval {version('lm-eval')}, gsm8k {task.VERSION}"


def _seeded(task: ConfigurableTask) -> ConfigurableTask:
    """The worked examples of a question depend on the seed and its number alone."""
    task.set_fewshot_seed(FEWSHOT_SEED)
    return task


def _local(test: Path, train: Path | None) -> Callable[..., dict[str, datasets.Dataset]]:
    """In memory: nothing is written to a cache, nothing is fetched."""

    def load(**_: Any) -> dict[str, datasets.Dataset]:
        splits = {"test": read_problems(test, "gsm8k.test_file")}
        if train is not None:
            splits["train"] = read_problems(train, "gsm8k.train_file")
        return {split: datasets.Dataset.from_list(list(rows)) for split, rows in splits.items()}

    return load


def _from_hub(config: dict[str, Any]) -> ConfigurableTask:
    try:
        return ConfigurableTask(config=config)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:  # whatever the network does
        raise UserError(
            f"accuracy=gsm8k: its questions cannot be fetched from the hub ({type(error).__name__}: {error});"
            " give them as files: gsm8k.test_file=FILE gsm8k.train_file=FILE"
        ) from error
