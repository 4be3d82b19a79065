"""Greedy decoding of many prompts at once with the model that is being trained, and MTP's acceptance."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from paths.models.train.attention import Indexing, Keys
from paths.models.train.documents import Document, pack
from paths.models.train.model import OFF, SELECT, Side, TrainedModel
from paths.models.train.parameters import HEAD, Parameters
from paths.models.train.tokenizer import EOS


@torch.no_grad()
def greedy(
    model: TrainedModel, p: Parameters, prompts: Sequence[list[int]], *, max_new: int, sparse: bool
) -> list[list[int]]:
    """New tokens of each prompt, up to and without the end of text. sparse: attend to the selection only."""
    indexing = SELECT if sparse else OFF
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    longest = int(lengths.max())
    caches, hidden = _prefill(model, p, prompts, indexing, room=longest + max_new)
    last = hidden[torch.arange(len(prompts)), lengths - 1]
    token = model.logits(p, last).float().argmax(-1)
    found, open_rows = [token.tolist()], token != EOS
    steps = torch.arange(longest + max_new)
    for step in range(max_new - 1):
        if not open_rows.any():
            break
        positions = (lengths + step)[:, None]
        sight = model.sight_of(steps <= positions[..., None], positions)
        hidden = model.hidden(p, token[:, None], sight, indexing, Side(caches=caches))
        token = model.logits(p, hidden[:, 0]).float().argmax(-1)
        found.append(token.tolist())
        open_rows &= token != EOS
    rows = [list(row) for row in zip(*found, strict=True)]
    return [row[: row.index(EOS)] if EOS in row else row for row in rows]


def _prefill(
    model: TrainedModel, p: Parameters, prompts: Sequence[list[int]], indexing: Indexing, *, room: int
) -> tuple[list[Keys], Tensor]:
    """Caches with room for the whole texts, and the states of the prompts."""
    config = model.config
    longest = max(len(prompt) for prompt in prompts)
    rows = pack([[Document(prompt, prompt, [0.0] * len(prompt))] for prompt in prompts], longest)
    side = Side(kept=[])
    hidden = model.hidden(p, rows.tokens, model.sight(rows.positions, rows.document), indexing, side)
    assert side.kept is not None
    caches = []
    for keys in side.kept[: config.num_hidden_layers]:
        index = None if keys.index is None else _extended(keys.index, 1, room)
        caches.append(Keys(_extended(keys.key, 2, room), _extended(keys.value, 2, room), index))
    return caches, hidden


def _extended(values: Tensor, dim: int, length: int) -> Tensor:
    shape = list(values.shape)
    shape[dim] = length - shape[dim]
    return torch.cat([values, values.new_zeros(shape)], dim=dim)


@torch.no_grad()
def first_draft_acceptance(
    model: TrainedModel,
    p: Parameters,
    prompts: Sequence[list[int]],
    outputs: Sequence[list[int]],
    *,
    max_new: int,
    sparse: bool,
) -> tuple[int, int]:
    """How many greedy tokens the MTP layer would have drafted right, of how many.

    At each position of an output it predicts the token after the next. The outputs are those of `greedy`;
    behind one that was not cut at `max_new` stands the end of the text.
    """
    ends = ([EOS] if len(output) < max_new else [] for output in outputs)
    texts = [[*prompt, *output, *end] for prompt, output, end in zip(prompts, outputs, ends, strict=True)]
    rows = pack([[Document(text, text, [0.0] * len(text))] for text in texts], max(map(len, texts)))
    sight, side, indexing = model.sight(rows.positions, rows.document), Side(), SELECT if sparse else OFF
    hidden = model.hidden(p, rows.tokens, sight, indexing, side)
    drafted = model.mtp(p, hidden, rows.tokens.roll(-1, 1), sight, indexing, side)
    accepted = total = 0
    for i, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
        start, end = len(prompt) - 1, len(text) - 2
        guesses = torch.nn.functional.linear(drafted[i, start:end], p[HEAD]).float().argmax(-1)
        accepted += int((guesses == torch.tensor(text[start + 2 :])).sum())
        total += end - start
    return accepted, total
