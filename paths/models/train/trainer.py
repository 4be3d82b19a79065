"""The training loop: seeded, on the CPU, continuing from its last saved state."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from paths.api import UserError
from paths.models.config import ModelConfig
from paths.models.train.attention import Sight
from paths.models.train.documents import Document, DocumentStream, Rows
from paths.models.train.evaluate import evaluate
from paths.models.train.model import Side, TrainedModel
from paths.models.train.moe import balance
from paths.models.train.optimizer import Optimizer, OptimizerOptions
from paths.models.train.parameters import Parameters, computed, initial_parameters
from paths.models.train.schedule import Stage, rate, stage_of

logger = logging.getLogger(__name__)
STATE, CURVE = "state.pt", "curve.json"
DOCUMENT_SEED = 1  # of the training stream; 0 is the sample that the tokenizer learned from


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run is made of; the same settings and seed give the same model."""

    steps: int
    seed: int = 0
    dtype: torch.dtype = torch.bfloat16
    compiled: bool = True
    mtp_weight: float = 0.2
    question_weight: float = 0.1
    balance_speed: float = 0.002
    max_length: int = 2048
    save_seconds: float = 240.0
    evaluate_every: int = 400
    evaluate_problems: int = 48
    optimizer: OptimizerOptions = field(default_factory=OptimizerOptions)


class Trainer:
    """Parameters, optimizer and data position of one run, kept in `folder`."""

    def __init__(self, hf: dict[str, Any], tokenizer: Tokenizer, settings: Settings, folder: Path) -> None:
        self.hf, self.tokenizer, self.settings, self.folder = hf, tokenizer, settings, folder
        self.config = ModelConfig.from_hf(hf)
        self.model = TrainedModel(self.config, max_length=settings.max_length, compiled=settings.compiled)
        # prompts have any length: nothing is compiled for them
        self.scored = TrainedModel(self.config, max_length=settings.max_length)
        self.parameters = initial_parameters(self.config, seed=settings.seed)
        self.optimizer = Optimizer(settings.optimizer)
        self.stream = DocumentStream(
            tokenizer, seed=DOCUMENT_SEED + settings.seed, question_weight=settings.question_weight
        )
        self.step, self.tokens, self.seconds = 0, 0, 0.0
        self.curve: list[dict[str, float | str]] = []

    def resume(self) -> None:
        """Continue where the folder's state stands. Raises UserError if it has none."""
        path = self.folder / STATE
        if not path.is_file():
            raise UserError(f"{path} is missing: leave out --resume to start a new run")
        state = torch.load(path, weights_only=True)
        self.parameters, self.curve = state["parameters"], state["curve"]
        self.optimizer.state, self.optimizer.steps = state["optimizer"], state["optimizer_steps"]
        self.step, self.tokens, self.seconds = state["step"], state["tokens"], state["seconds"]
        self.stream.index = state["index"]
        self.stream.waiting = [Document(**kept) for kept in state["waiting"]]

    def save(self) -> None:
        """State and curve; each is replaced in one go."""
        self.folder.mkdir(parents=True, exist_ok=True)
        state = {
            "parameters": self.parameters,
            "optimizer": self.optimizer.state,
            "optimizer_steps": self.optimizer.steps,
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "index": self.stream.index,
            "waiting": [asdict(document) for document in self.stream.waiting],
            "curve": self.curve,
        }
        written = self.folder / f"{STATE}.new"
        torch.save(state, written)
        written.replace(self.folder / STATE)
        content = {"settings": asdict(self.settings), "curve": self.curve}
        written = self.folder / f"{CURVE}.new"
        written.write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")
        written.replace(self.folder / CURVE)

    def run(self) -> None:
        """Train to the last step, saving now and then and at the end."""
        saved = time.monotonic()
        while self.step < self.settings.steps:
            began = time.monotonic()
            stage = stage_of(self.step, self.settings.steps)
            found = self.train_step(stage)
            self.seconds += time.monotonic() - began
            due = self.step % self.settings.evaluate_every == 0 or self.step == self.settings.steps
            if self.step % 20 == 0 or due:
                self._record(stage, found, due=due)
            if time.monotonic() - saved > self.settings.save_seconds or due:
                self.save()
                saved = time.monotonic()

    def train_step(self, stage: Stage) -> dict[str, float]:
        """One update. Returns the losses."""
        rows = self.stream.rows(
            count=stage.rows,
            length=stage.length,
            shots=stage.shots,
            drills=stage.drills,
            invented=stage.invented,
            compounds=stage.compounds,
        )
        parameters = computed(self.parameters, self.settings.dtype)
        if stage.frozen:
            for name, leaf in parameters.items():
                leaf.requires_grad_(leaf.requires_grad and name.startswith(f"{self.model.mtp_prefix}."))
        loss, found, side = self.losses(parameters, rows, stage)
        loss.backward()
        gradients = {name: leaf.grad for name, leaf in parameters.items() if leaf.grad is not None}
        scale = rate(self.step, self.settings.steps)
        found["gradient"] = self.optimizer.step(self.parameters, gradients, scale=scale)
        balance(self.parameters, side.loads, speed=self.settings.balance_speed * scale)
        self.step += 1
        self.tokens += rows.num_tokens
        return found

    def losses(self, p: Parameters, rows: Rows, stage: Stage) -> tuple[Tensor, dict[str, float], Side]:
        """The sum to minimise, its parts as numbers, and what the pass found out of the layers that learn."""
        side, sight = Side(), self.model.sight(rows.positions, rows.document)
        with torch.set_grad_enabled(not stage.frozen):
            main_side = Side() if stage.frozen else side
            hidden = self.model.hidden(p, rows.tokens, sight, stage.indexing, main_side)
            main = self._cross_entropy(p, hidden, rows.targets, rows.weights)
        found = {"loss": float(main.detach())}
        total = main
        if stage.mtp:
            drafts = self._draft_losses(p, rows, sight, hidden, stage, side)
            found |= {f"mtp_loss_{depth}": float(each.detach()) for depth, each in enumerate(drafts, start=1)}
            mean = torch.stack(drafts).mean()
            total = mean if stage.frozen else total + self.settings.mtp_weight * mean
        if side.alignment:
            alignment = torch.stack(side.alignment).sum()
            found["alignment"] = float(alignment.detach()) / len(side.alignment)
            total = total + alignment
        return total, found, side

    def _draft_losses(
        self, p: Parameters, rows: Rows, sight: Sight, hidden: Tensor, stage: Stage, side: Side
    ) -> list[Tensor]:
        """One per draft; each draft's state is the next one's input, as when an engine drafts.

        Draft d of row i has seen d tokens behind it, and predicts what should follow the last of them. It
        sees the keys of draft d at earlier rows, where an engine has those of draft 0 and its predecessors.
        """
        losses, state = [], hidden
        for depth in range(1, stage.mtp + 1):
            state = self.model.mtp(p, state, rows.tokens.roll(-depth, 1), sight, stage.indexing, side)
            weights = rows.weights.roll(-depth, 1) * (rows.document == rows.document.roll(-depth, 1))
            weights[:, -depth:] = 0.0
            losses.append(self._cross_entropy(p, state, rows.targets.roll(-depth, 1), weights))
        return losses

    def _cross_entropy(self, p: Parameters, hidden: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Weighted mean over the rows that count."""
        counted = weights.flatten().nonzero()[:, 0]
        logits = self.model.logits(p, hidden.flatten(0, 1).index_select(0, counted)).float()
        each = F.cross_entropy(logits, targets.flatten()[counted], reduction="none")
        kept = weights.flatten()[counted]
        return (each * kept).sum() / kept.sum().clamp_min(1e-9)

    def _record(self, stage: Stage, found: dict[str, float], *, due: bool) -> None:
        """A point of the learning curve, with exact match if that is due."""
        point: dict[str, float | str] = {"step": self.step, "stage": stage.name, "tokens": self.tokens}
        point |= {"seconds": round(self.seconds, 1)}
        point |= {name: round(value, 4) for name, value in found.items()}
        if due:
            long = stage.indexing.align
            score = evaluate(
                self.scored,
                computed(self.parameters, self.settings.dtype),
                self.tokenizer,
                shots=5 if long else 0,
                number=self.settings.evaluate_problems,
                sparse=stage.indexing.select,
                mtp=stage.mtp > 0,
            )
            point |= score.as_point()
        self.curve.append(point)
        logger.info("%s", " ".join(f"{name}={value}" for name, value in point.items()))
