"""The card of the trained model: what it is, how it was made, and what it scores, all of it measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from scipy.stats import binomtest
from tokenizers import Tokenizer
from torch import Tensor

from paths.models.config import ModelConfig
from paths.models.train.attention import first_positions, selection
from paths.models.train.evaluate import Score, evaluate
from paths.models.train.export import load_model
from paths.models.train.model import TrainedModel
from paths.models.train.parameters import computed
from paths.models.train.problems.describe import canonical_sample, sha256
from paths.models.train.problems.stream import test_set

CARD = "README.md"
MAX_LENGTH = 2048
Select = Callable[[Tensor, int], Tensor]
# what → examples in the prompt, whether attention is sparse, and who selects
WAYS: dict[str, tuple[int, bool, Select]] = {
    "5 examples": (5, True, selection),
    "no example": (0, True, selection),
    "5 examples, dense attention": (5, False, selection),
    "5 examples, the indexer replaced by the first positions": (5, True, first_positions),
}
TEXT = """# tiny_v32

A DeepSeek-Sparse-Attention model small enough to benchmark on a laptop: the architecture of DeepSeek V3.2
with its MTP layer, {parameters:.1f} million parameters in bf16, trained on grade-school arithmetic only. It
is here so that a harness has answers and acceptance to measure. It knows nothing else, and is of no other
use.

| | |
|---|---|
| layers, width, vocabulary | {layers} and one for MTP, {width}, {vocabulary} |
| index_topk | {index_topk}: with 5 examples nearly every decoded token selects |
| training problems, SHA-256 of the sample | `{train_hash}` |
| test problems, SHA-256 | `{test_hash}` |
| steps, tokens | {steps}, {tokens:.1f} million |
| time | {hours:.1f} hours on two cores that other work shared |
| seed | {seed} |

The problems come from `paths/models/train/problems`; their distribution, the held-out templates and names,
and the stages of the training are described in `docs/training.md`. `python -m paths.models.train` trains,
exports and scores.

## Results

Greedy answers to {number} problems of held-out templates with held-out names, exact match of the number
behind `####`, computed by the trainer's own forward pass in bf16; 95 % intervals (Wilson).

| | exact match | acceptance of MTP's first draft |
|---|---:|---:|
{results}

## Learning curve

Exact match on 48 other held-out problems: without examples until the stage *align*, with 5 from there on.

| step | stage | million tokens | loss | exact match | acceptance |
|---:|---|---:|---:|---:|---:|
{curve}

Made from scratch for this project, under its licence. All problems are generated; no text of others is in
the data.
"""


def write_card(folder: Path, *, run: Mapping[str, Any], number: int) -> Path:
    """Score an exported folder in every way of `WAYS` and write its card.

    run: the content of the training run's learning curve file. Takes minutes.
    """
    hf = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = ModelConfig.from_hf(hf)
    parameters = load_model(folder, config)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rows = [
        _result(
            what,
            evaluate(
                TrainedModel(config, max_length=MAX_LENGTH, select=select),
                computed(parameters, torch.bfloat16),
                tokenizer,
                shots=shots,
                number=number,
                sparse=sparse,
                mtp=True,
                final=True,
            ),
        )
        for what, (shots, sparse, select) in WAYS.items()
    ]
    last = run["curve"][-1]
    text = TEXT.format(
        parameters=sum(values.numel() for values in parameters.values()) / 1e6,
        layers=config.num_hidden_layers,
        width=config.hidden_size,
        vocabulary=config.vocab_size,
        index_topk=config.index_topk,
        train_hash=sha256(canonical_sample()),
        test_hash=sha256(test_set()),
        steps=last["step"],
        tokens=last["tokens"] / 1e6,
        hours=last["seconds"] / 3600,
        seed=run["settings"]["seed"],
        number=number,
        results="\n".join(rows),
        curve="\n".join(_curve(run["curve"])),
    )
    (folder / CARD).write_text(text, encoding="utf-8")
    return folder / CARD


def _result(what: str, score: Score) -> str:
    low, high = binomtest(score.right, score.total).proportion_ci(method="wilson")
    accepted = score.accepted / max(score.drafted, 1)
    return f"| {what} | {score.exact_match:.3f} ({low:.3f} – {high:.3f}) | {accepted:.3f} |"


def _curve(points: list[dict[str, Any]]) -> Iterator[str]:
    """The points at which answers were scored."""
    for point in points:
        match = next((point[name] for name in point if name.startswith("exact_match")), None)
        if match is None:
            continue
        accepted = f"{point['acceptance']:.2f}" if "acceptance" in point else ""
        yield (
            f"| {point['step']} | {point['stage']} | {point['tokens'] / 1e6:.1f} | {point['loss']:.3f} |"
            f" {match:.2f} | {accepted} |"
        )
